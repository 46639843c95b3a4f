"""`super()` of a tensor: Python's own asks for the class of the fake tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from braze.capture.frames.control_signals import ProgramRaised
from braze.capture.state.guard_context import TENSORS

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@final
class SuperOfTensor:
    """What `super(start, owner)` is for a fake tensor of class `cls`, under the names that
    Python's has them."""

    def __init__(self, start: type, owner: object, cls: type) -> None:
        self.__thisclass__ = start
        self.__self__ = owner
        self.__self_class__ = cls


def make_super(interpreter: Interpreter, start: Any, owner: object) -> Any:
    """`super(start, owner)`."""
    if type(owner) not in TENSORS:
        return interpreter.native(super, start, owner)
    cls = interpreter.guard_context.type_of(owner)
    if not issubclass(cls, start):
        message = "super(type, obj): obj must be an instance or subtype of type"
        raise ProgramRaised(TypeError(message))
    return SuperOfTensor(start, owner, cls)
