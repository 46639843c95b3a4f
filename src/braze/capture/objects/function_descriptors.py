"""Methods in C of what holds a function and calls it: bound methods, partials, properties.

    types.MethodType(instance, x).__call__()     # the instance's `__call__` is interpreted
    property(read).__get__(owner)                # so is `read`

Called natively they would run the program's code unseen.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.objects.attribute_load import load_attribute

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


_CALLED = (
    *(types.FunctionType, types.MethodType, functools.partial, types.BuiltinFunctionType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType),
    types.ClassMethodDescriptorType,
)


@answers(*{kind.__call__ for kind in _CALLED})
def call_itself(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`f.__call__(...)` is `f(...)`."""
    return interpreter.call(args[0], *args[1:], **kwargs)


@answers(staticmethod.__call__)
def call_static(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A static method, called without its class."""
    function = load_attribute(interpreter, args[0], "__func__")
    return interpreter.call(function, *args[1:], **kwargs)


@answers(property.__get__)
def get_property(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`property.__get__(instance, cls)`; without an instance, the property."""
    held, instance = args[0], args[1]
    if instance is None:
        return held
    getter = load_attribute(interpreter, held, "fget")
    if getter is None:
        return interpreter.native(property.__get__, held, instance)
    return interpreter.call(getter, instance)


@answers(property.__set__, property.__delete__)
def change_property(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """`property.__set__(instance, value)`, and `__delete__(instance)`."""
    held, instance, *value = args
    function = load_attribute(interpreter, held, "fset" if value else "fdel")
    if function is None:
        raise BreakRequested("unseen-callable", "a property that cannot be written")
    interpreter.call(function, instance, *value)
