"""Answers of capture to torch's questions about compilers, and to its ambient settings."""

from __future__ import annotations

import warnings
from typing import Any

from braze.capture.handler_table import answers
from braze.capture.signals import BreakRequested
from braze.compat.compiler_questions import (
    AMBIENT_MANAGERS,
    COMPILING,
    GRAPH_BREAKS,
    NOT_TRACING,
    NOTHING,
)
from braze.ir.frame import Call, FromConstant


def _constant(value: Any) -> Any:
    def answer(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return value

    return answer


for _functions, _value in ((COMPILING, True), (NOT_TRACING, False), (NOTHING, None)):
    for _function in _functions:
        answers(_function)(_constant(_value))


@answers(*GRAPH_BREAKS)
def explicit_break(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise BreakRequested("explicit", "graph_break()")


def _manager(cls: type) -> Any:
    """Context managers of torch's ambient state run for real; capture restores it at the end."""

    def make(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return interpreter.native(cls, *args, **kwargs)

    return make


def _manager_method(function: Any) -> Any:
    def run(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return interpreter.native(function, *args, **kwargs)

    return run


for _cls in AMBIENT_MANAGERS:
    answers(_cls)(_manager(_cls))
    for _name in ("__enter__", "__exit__"):
        if _name in vars(_cls):
            answers(vars(_cls)[_name])(_manager_method(vars(_cls)[_name]))


@answers(warnings.warn)
def warn(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A warning is given after the graph ran."""
    if kwargs.keys() - {"category", "stacklevel"}:
        raise BreakRequested("input-output", "warnings.warn")
    category = args[1] if len(args) > 1 else kwargs.get("category")
    values = (args[0], category) if category is not None else (args[0],)
    if not all(isinstance(value, (str, type)) for value in values):
        raise BreakRequested("input-output", "warnings.warn")
    recipes = tuple([FromConstant(value) for value in values])
    interpreter.late_calls.append(Call(warnings.warn, recipes))
