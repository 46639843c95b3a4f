"""Text of values: f-strings, str, repr and format."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from braze.capture.signals import BreakRequested
from braze.capture.world import CONSTANTS, TENSORS, is_identity

_METHODS: dict[Any, str] = {str: "__str__", repr: "__repr__", ascii: "__repr__"}


def text_of(interpreter: Any, value: Any, convert: Callable[[Any], str]) -> str:
    """`str(value)`, `repr(value)` or `ascii(value)`."""
    cls = type(value)
    if cls in CONSTANTS:
        return interpreter.native(convert, value)
    if cls in TENSORS:
        raise BreakRequested("data-dependent-value", "the text of a tensor")
    if is_identity(value):
        return interpreter.native(convert, value)
    method = interpreter.world.lookup(cls, _METHODS[convert])
    if convert is str and method is object.__str__:
        method = interpreter.world.lookup(cls, "__repr__")
    if isinstance(method, types.FunctionType):
        return interpreter.call(method, value)
    if isinstance(value, BaseException):
        return interpreter.native(convert, value)
    contents = interpreter.overlay.native(value)
    if cls in (list, tuple, dict, set, frozenset) and _is_plain(contents):
        return interpreter.native(convert, contents)
    raise BreakRequested("unseen-python", f"the text of a {cls.__qualname__}")


def _is_plain(value: Any) -> bool:
    cls = type(value)
    if cls in (list, tuple, set, frozenset):
        return all(map(_is_plain, value))
    if cls is dict:
        return all(_is_plain(k) and _is_plain(v) for k, v in value.items())
    return cls in CONSTANTS


def format_value(
    interpreter: Any, value: Any, conversion: Callable[[Any], str] | None, spec: str
) -> str:
    """One field of an f-string."""
    if conversion is not None:
        value = text_of(interpreter, value, conversion)
    if type(value) in CONSTANTS:
        return interpreter.native(format, value, spec)
    if type(value) in TENSORS and not value.dim():
        raise BreakRequested("data-dependent-value", "formatting a tensor")
    method = interpreter.world.lookup(type(value), "__format__")
    if isinstance(method, types.FunctionType):
        return interpreter.call(method, value, spec)
    return interpreter.native(format, text_of(interpreter, value, str), spec)
