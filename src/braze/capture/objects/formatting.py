"""Text of values: f-strings, str, repr and format."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from braze.capture.calls.c_functions import call_seen
from braze.capture.calls.torch_calls import check_original
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.guard_context import CONSTANTS, TENSORS, is_identity
from braze.capture.state.lazy_strings import ShownText, at_hand, shown, symbolic_numbers
from braze.capture.state.side_effects import EXACT
from braze.capture.state.special_methods import runs_python
from braze.compat.python.bytecode import ends_by_raising
from braze.shapes.symbolic import ProgramInt

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_METHODS: dict[Any, str] = {str: "__str__", repr: "__repr__", ascii: "__repr__"}


def text_of(interpreter: Interpreter, value: Any, convert: Callable[[object], str]) -> str:
    """`str(value)`, `repr(value)` or `ascii(value)`."""
    cls = type(value)
    numbers = symbolic_numbers(value)
    if numbers and (cls is ProgramInt or cls is torch.Size):
        return _shown(interpreter, convert(at_hand(value)), numbers)
    if cls is ShownText and convert is str:
        return value
    if cls in CONSTANTS:
        return interpreter.native(convert, value)
    if cls in TENSORS:
        check_original(interpreter.guard_context, _METHODS[convert], value)
        _refuse_text(interpreter)
    if is_identity(value) and not runs_python(cls):
        return interpreter.native(convert, value)
    method = interpreter.guard_context.lookup(cls, _METHODS[convert])
    if convert is str and method is object.__str__:
        method = interpreter.guard_context.lookup(cls, "__repr__")
    if type(method) is types.FunctionType:
        text = interpreter.call(method, value)
        if not isinstance(text, str):
            message = f"{method.__name__} returned non-string (type {type(text).__name__})"
            raise ProgramRaised(TypeError(message))
        return interpreter.native(ascii, text) if convert is ascii else text
    if method in _TEXT_OF_EXCEPTIONS and runs_python(cls):
        return _text_of_exception(interpreter, value, method, convert)
    if id(value) in interpreter.guard_context.known and cls not in EXACT and not is_identity(value):
        raise BreakRequested("unseen-python", f"the text of a {cls.__qualname__}")
    result = call_seen(interpreter, convert, (interpreter.side_effects.native(value),), {})
    if type(result) is not str:
        result = str.__str__(result)
    return result


def _refuse_text(interpreter: Interpreter) -> NoReturn:
    """The text of a tensor shows its data. In a message of what the program raises, and nothing
    catches, the call raises as it does when it runs eagerly."""
    frame = interpreter.frames[-1]
    is_caught = any(one.steps[one.index - 1][1].region for one in interpreter.frames)
    if not is_caught and ends_by_raising(frame.code, frame.index):
        raise ProgramRaised(RuntimeError("an exception that shows a tensor"))
    raise BreakRequested("data-dependent-value", "the text of a tensor")


_TEXT_OF_EXCEPTIONS = (BaseException.__str__, BaseException.__repr__, KeyError.__str__)


def _text_of_exception(
    interpreter: Interpreter, value: object, method: object, convert: Callable[[object], str]
) -> str:
    """What the builtin method makes of the arguments of an exception of the program's own class."""
    args = interpreter.side_effects.native(interpreter.attribute(value, "args"))
    if method is BaseException.__repr__:
        shows = ascii if convert is ascii else repr
        text = text_of(interpreter, args[0] if len(args) == 1 else args, shows)
        name = type.__dict__["__name__"].__get__(interpreter.guard_context.type_of(value))
        return f"{name}({text})" if len(args) == 1 else f"{name}{text}"
    if not args:
        return ""
    if len(args) == 1:
        return text_of(interpreter, args[0], str if method is BaseException.__str__ else repr)
    return text_of(interpreter, args, repr)


def _shown(interpreter: Interpreter, text: str, numbers: tuple[ProgramInt, ...]) -> ShownText:
    interpreter.shows_text = True
    return shown(text, numbers, interpreter.outer_step)


def format_value(
    interpreter: Interpreter, value: object, conversion: Callable[[object], str] | None, spec: str
) -> str:
    """One field of an f-string."""
    if type(spec) is ShownText:
        spec = interpreter.native(ShownText.settle, spec)
    if conversion is not None:
        value = text_of(interpreter, value, conversion)
    numbers = symbolic_numbers(value)
    if numbers and (type(value) is ProgramInt or type(value) is torch.Size):
        return _shown(interpreter, format(at_hand(value), spec), numbers)
    if type(value) is ShownText:
        return value if not spec else format(value.settle(), spec)
    if type(value) in CONSTANTS:
        return interpreter.native(format, value, spec)
    if type(value) in TENSORS:
        check_original(interpreter.guard_context, "__format__", value)
        _refuse_text(interpreter)
    method = interpreter.guard_context.lookup(type(value), "__format__")
    if type(method) is types.FunctionType:
        text = interpreter.call(method, value, spec)
        if not isinstance(text, str):
            message = f"__format__ must return a str, not {type(text).__name__}"
            raise ProgramRaised(TypeError(message))
        return text
    if method is object.__format__ and not spec:
        return text_of(interpreter, value, str)
    return call_seen(interpreter, format, (interpreter.side_effects.native(value), spec), {})
