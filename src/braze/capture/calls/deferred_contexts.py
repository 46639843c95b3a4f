"""Context managers from outside whose effects no operator of the graph sees.

A block that ends in the frame leaves nothing behind. One that a break cuts is entered behind the
graph, and left by what runs the rest of the frame:

    with manager:                          graph
        y = x + 1             ->           manager.__enter__()
        print(y)                           ... the rest of the frame, in the block
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.compat.torch.dynamo_interop import LABELS

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_NONE = (None, None, None)  # what `__exit__` gets where nothing was raised


def enter_late(interpreter: Interpreter, enter: object, manager: object) -> None:
    """Enter a manager behind the graph, unless its block ends first."""
    interpreter.deferred_calls.append((enter, (manager,)))


def leave_late(interpreter: Interpreter, enter: object, leave: object, manager: object) -> bool:
    """Leave a manager, behind the graph where something is left of it. Whether it had been entered
    in this frame."""
    late, entered, left = (
        interpreter.deferred_calls,
        (enter, (manager,)),
        (leave, (manager, *_NONE)),
    )
    is_open = late.count(entered) > late.count(left)
    if is_open and late[-1] == entered:
        late.pop()
    else:
        late.append(left)
    return is_open


def _enter_label(cls: type) -> Callable[..., object]:
    enter = vars(cls)["__enter__"]

    def run(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
        (label,) = args
        if interpreter.guard_context.source_of(label) is None:
            raise BreakRequested("unsupported-function", f"{cls.__qualname__} made in the frame")
        interpreter.labels.append(label.name)  # not guarded: nothing depends on it but a profile
        enter_late(interpreter, enter, label)
        return label

    return run


def _leave_label(cls: type) -> Callable[..., object]:
    enter, leave = vars(cls)["__enter__"], vars(cls)["__exit__"]

    def run(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        if leave_late(interpreter, enter, leave, args[0]):
            interpreter.labels.pop()

    return run


for _cls in LABELS:
    answers(vars(_cls)["__enter__"])(_enter_label(_cls))
    answers(vars(_cls)["__exit__"])(_leave_label(_cls))
