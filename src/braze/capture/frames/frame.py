"""Interpreter frames, and the binding of arguments to parameters."""

from __future__ import annotations

import types
from typing import Any, final

from braze.capture.frames.dispatch_table import Step
from braze.ir.captured.source import Source

_VARARGS = 0x04
_VARKEYWORDS = 0x08
GENERATOR_FLAGS = 0x20
COROUTINE_FLAGS = 0x80 | 0x100 | 0x200


@final
class Unread:
    """An argument that the program has not looked at yet."""

    __slots__ = ("source", "value")

    def __init__(self, value: Any, source: Source) -> None:
        self.value = value
        self.source = source


@final
class Frame:
    """One activation of a Python function.

    index: of the next step. locals and cells: by name. handled: the exceptions being handled,
    innermost last. names: the namespace of a class body, else None. call_stack, call_offset,
    call_step: of the caller, as it was before the call that made this frame.
    of_module: it was made by `nn.Module.__call__`, which is not interpreted.
    runs_eagerly: its own tensor operations break the graph. turns: of each loop, by where it
    begins: how many there were, and how much was recorded after the first few.
    """

    __slots__ = (
        "call_offset",
        "call_stack",
        "call_step",
        "cells",
        "code",
        "current",
        "function",
        "generator",
        "globals",
        "handled",
        "index",
        "locals",
        "names",
        "of_module",
        "runs_eagerly",
        "stack",
        "steps",
        "turns",
    )

    def __init__(
        self, code: types.CodeType, space: dict[str, Any], steps: tuple[Step, ...], function: object
    ) -> None:
        self.code = code
        self.globals = space
        self.steps = steps
        self.function = function
        self.index = 0
        self.locals: dict[str, Any] = {}
        self.cells: dict[str, types.CellType] = {}
        self.stack: list[Any] = []
        self.handled: list[Any] = []
        self.current: Step = steps[0]
        self.call_stack: list[Any] | None = None
        self.call_offset = -1
        self.call_step = -1
        self.generator: Any = None
        self.of_module = self.runs_eagerly = False
        self.names: Any = None
        self.turns: dict[int, tuple[int, int, int]] = {}


class CannotBind(Exception):
    """The arguments do not fit the parameters."""


def bind(
    code: types.CodeType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    defaults: tuple[object, ...],
    keyword_defaults: dict[str, object],
) -> dict[str, object]:
    """Local variables at entry, as CPython binds them; CannotBind where it would raise."""
    count = code.co_argcount
    names = code.co_varnames
    given = len(args)
    if given == count and not kwargs and not code.co_kwonlyargcount and not code.co_flags & 12:
        return dict(zip(names, args))
    bound = dict(zip(names[:count], args))
    position = count + code.co_kwonlyargcount
    extra: dict[str, Any] = {}
    positional_only = set(names[: code.co_posonlyargcount])
    accepted = set(names[:position]) - positional_only
    for name, value in kwargs.items():
        if name in accepted:
            if name in bound:
                raise CannotBind(name)
            bound[name] = value
        else:
            extra[name] = value
    if code.co_flags & _VARARGS:
        bound[names[position]] = tuple(args[count:])
        position += 1
    elif given > count:
        raise CannotBind("too many")
    if code.co_flags & _VARKEYWORDS:
        bound[names[position]] = extra
    elif extra:
        raise CannotBind(next(iter(extra)))
    _fill_defaults(code, bound, defaults, keyword_defaults)
    return bound


def _fill_defaults(
    code: types.CodeType,
    bound: dict[str, object],
    defaults: tuple[object, ...],
    keyword_defaults: dict[str, object],
) -> None:
    count = code.co_argcount
    names = code.co_varnames
    first = count - len(defaults)
    for index in range(count):
        name = names[index]
        if name not in bound:
            if index < first:
                raise CannotBind(name)
            bound[name] = defaults[index - first]
    for name in names[count : count + code.co_kwonlyargcount]:
        if name not in bound:
            if name not in keyword_defaults:
                raise CannotBind(name)
            bound[name] = keyword_defaults[name]
