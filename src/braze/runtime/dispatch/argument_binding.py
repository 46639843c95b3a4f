"""From a call's arguments to the locals of a code object, as CPython binds them.

For `def f(a, b=2, *rest, c, **more)` with the free variable `k` the generated binder is

    def bind(a, b=2, *rest, c, **more):
        return {'a': a, 'b': b, 'c': c, 'rest': rest, 'more': more, 'k': cell0}

with the function's own default objects, so that CPython itself does the binding. It raises
TypeError exactly where the function would; the function is then called to word it.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from braze.ir.generated_code import define
from braze.runtime.guards.codegen import is_plain_name

Binder = Callable[..., dict[str, Any]]


def make_binder(function: types.FunctionType) -> Binder:
    """The binder of a function; its defaults are those of the function now."""
    code = function.__code__
    parameters = _parameters(code)
    names = [name for name, _ in parameters]
    free = code.co_freevars
    if all(map(is_plain_name, names)):
        binder = _generate(parameters, free, function.__closure__ or ())
        copy_defaults(function, binder)
        return binder
    return _positional_binder(names, dict(zip(free, function.__closure__ or ())))


def copy_defaults(function: types.FunctionType, binder: Any) -> None:
    """Give the binder the default objects that the function has now."""
    binder.__defaults__ = function.__defaults__
    binder.__kwdefaults__ = function.__kwdefaults__


def _parameters(code: types.CodeType) -> list[tuple[str, str]]:
    """(name, kind) in the order of `co_varnames`; kind: "/", "", "k", "*" or "**"."""
    positional, keyword = code.co_argcount, code.co_kwonlyargcount
    kinds = ["/"] * code.co_posonlyargcount
    kinds += [""] * (positional - code.co_posonlyargcount) + ["k"] * keyword
    if code.co_flags & inspect.CO_VARARGS:
        kinds.append("*")
    if code.co_flags & inspect.CO_VARKEYWORDS:
        kinds.append("**")
    return list(zip(code.co_varnames, kinds))


def _generate(
    parameters: list[tuple[str, str]], free: tuple[str, ...], cells: tuple[object, ...]
) -> Binder:
    by_kind: dict[str, list[str]] = {kind: [] for kind in ("/", "", "k", "*", "**")}
    for name, kind in parameters:
        by_kind[kind].append(name)
    signature = [*by_kind["/"], *(["/"] if by_kind["/"] else []), *by_kind[""]]
    if by_kind["*"]:
        signature.append(f"*{by_kind['*'][0]}")
    elif by_kind["k"]:
        signature.append("*")
    signature += by_kind["k"] + [f"**{name}" for name in by_kind["**"]]
    taken = {name for name, _ in parameters}
    prefix = "cell"
    while any(name.startswith(prefix) for name in taken):
        prefix = f"_{prefix}"
    namespace = {f"{prefix}{index}": cell for index, cell in enumerate(cells)}
    items = [f"{name!r}: {name}" for name, _ in parameters]
    items += [f"{name!r}: {prefix}{index}" for index, name in enumerate(free)]
    text = f"def bind({', '.join(signature)}):\n    return {{{', '.join(items)}}}\n"
    binder: Binder = define([text], "<braze binder>", namespace)
    return binder


def _positional_binder(names: list[str], cells: dict[str, object]) -> Binder:
    """For the functions that CPython makes itself, whose argument is called `.0`."""

    def bind(*args: object) -> dict[str, object]:
        if len(args) != len(names):
            raise TypeError(f"expected {len(names)} arguments, got {len(args)}")
        return {**dict(zip(names, args)), **cells}

    return bind
