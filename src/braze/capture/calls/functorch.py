"""torch.func's transforms: Python code that C code would call."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.calls.callbacks import Callback
from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import traced
from braze.capture.frames.control_signals import BreakRequested
from braze.compat.torch.functorch import (
    ENTER_FORWARD,
    EXIT_FORWARD,
    LEVEL_CALLS,
    sets_generator_back,
    with_transformed,
)
from braze.ir.captured.source import ClosureSource

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_TRANSFORMS = (
    torch.vmap,
    torch.func.grad,
    torch.func.grad_and_value,
    torch.func.jacrev,
    torch.func.jacfwd,
    torch.func.hessian,
)


@final
class Transformed:
    """What a transform gave: called natively, it calls the program's function through capture.

    made_by: the transform, its positional arguments and keywords; None for the pull-back of a vjp,
    which holds a trace. made_at: the step of the outermost loop that made it.
    """

    def __init__(self, interpreter: Interpreter, function: object, made_by: Any) -> None:
        self.function = function
        self.made_by = made_by
        self.made_at = interpreter.outer_step


@final
class Whole:
    """A callable that the program takes into the graph as it is."""

    def __init__(self, function: object) -> None:
        self.function = function


@final
class CompiledHere:
    """What a call of `braze.compile` in the frame gave: called in the frame, it is the program's
    function. made_by: `compile`, its positional arguments and keywords."""

    def __init__(self, function: types.FunctionType, made_by: Any) -> None:
        self._function = function
        self._made_by = made_by

    def __getattr__(self, name: str) -> Any:
        """What a compiled function has besides its call."""
        raise AttributeError(name)


def _transform(transform: Any) -> Callable[..., object]:
    def make(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Transformed:
        function, *rest = args
        made = interpreter.native(transform, Callback(interpreter, function), *rest, **kwargs)
        return Transformed(interpreter, made, (transform, args, kwargs))

    return make


for _function in _TRANSFORMS:
    answers(_function)(_transform(_function))


@answers(torch.func.vjp)
def take_vjp(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """The outputs, and a function that pulls gradients back through them."""
    function, *primals = args
    arguments = (Callback(interpreter, function), *primals)
    result, pull_back, *aux = run_transform(interpreter, torch.func.vjp, arguments, kwargs)
    return (result, Transformed(interpreter, pull_back, None), *aux)


@answers(torch.func.jvp)
def take_jvp(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    function, *rest = args
    return run_transform(
        interpreter, torch.func.jvp, (Callback(interpreter, function), *rest), kwargs
    )


@answers(torch.func.linearize)
def take_linearization(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    raise BreakRequested("unseen-python", "torch.func.linearize, which traces by itself")


@answers(*LEVEL_CALLS)
def change_levels(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """In a frame of torch.func's own. A level that capture enters would be open behind it."""
    raise BreakRequested("unseen-python", "a level of torch.func's transforms")


@final
class ForwardLevel:
    """A level of forward mode that the frame entered; `entered_at`: the outermost loop's step."""

    def __init__(self, level: int, entered_at: int) -> None:
        self.level = level
        self.entered_at = entered_at

    def __exit__(self, *exception: object) -> None:
        EXIT_FORWARD(level=self.level)


@answers(ENTER_FORWARD)
def enter_forward(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    level = interpreter.native(ENTER_FORWARD)
    interpreter.entered.append(ForwardLevel(level, interpreter.outer_step))
    interpreter.transforms += 1  # a noted call would run where no level is open
    return level


@answers(EXIT_FORWARD)
def exit_forward(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    levels = [entered for entered in interpreter.entered if type(entered) is ForwardLevel]
    if not levels:
        raise BreakRequested("unseen-python", "a level of forward mode that began outside")
    interpreter.native(EXIT_FORWARD, *args, **kwargs)
    interpreter.entered.remove(levels[-1])
    interpreter.transforms -= 1


def call_transformed(
    interpreter: Interpreter,
    transformed: Transformed,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """Run a transformed function on fake tensors; inside, the program is interpreted as ever."""
    return run_transform(interpreter, transformed.function, args, kwargs)


def call_made_outside(
    interpreter: Interpreter,
    function: types.FunctionType,
    place: int,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """A call of what a transform gave before the frame: the same transform of a callback."""
    guard_context = interpreter.guard_context
    base = guard_context.source_of_function(function)
    held = [
        guard_context.wrap_value(cell.cell_contents, ClosureSource(base, index))
        for index, cell in enumerate(function.__closure__ or ())
    ]
    made = with_transformed(function, place, Callback(interpreter, held[place]))
    return run_transform(interpreter, made, args, kwargs)


def run_transform(
    interpreter: Interpreter, function: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    """Run code of torch.func on fake tensors."""
    if sets_generator_back(function):
        raise BreakRequested("global-state", "the state of random numbers, of vmap in chunks")
    native = interpreter.side_effects.native
    values = tuple([native(value) for value in args])
    keywords = {name: native(value) for name, value in kwargs.items()}
    interpreter.tracer.origin = interpreter.origin("torch.func")
    interpreter.transforms += 1
    try:
        return traced(function, values, keywords)
    finally:
        interpreter.transforms -= 1
