"""Gradients of plain tensors through operators that a wrapper subclass answers below autograd.

    y = x @ weight     weight a wrapper, x needs a gradient

Autograd differentiates the operator, not what the class's `__torch_dispatch__` does in its place.
So the call is recorded as a function of autograd (`autograd_functions.py`): its forward is what the
class does; its backward makes the call once more on fake tensors, and lets PyTorch's engine go
back through it, whose operators on wrappers come to the class again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import TENSORS
from braze.capture.training.autograd_functions import OperatorFunction, apply_function
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.wrapper_fake import holds_wrapper

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def call_with_gradient(
    interpreter: Interpreter, function: Any, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A call on wrappers whose plain arguments need gradients; a break where a wrapper among its
    arguments or results does, where it writes, and where it draws random numbers."""
    inputs: list[Any] = []
    _gather((args, kwargs), inputs)
    name = getattr(function, "__name__", str(function))
    if not all(type(tensor) is TracedTensor for tensor in inputs):
        raise _refused(name, "to a tensor subclass")

    def call(values: Sequence[object]) -> object:
        given = {id(tensor): value for tensor, value in zip(inputs, values, strict=True)}
        arguments: Any = _replaced(args, given)
        keywords: Any = _replaced(kwargs, given)
        return function(*arguments, **keywords)

    cls = _function_of(interpreter, name, call)
    interpreter.guard_context.note_class(cls, interpreter.outer_step)
    return apply_function(interpreter, (cls, *inputs), {})


def _function_of(
    interpreter: Interpreter, name: str, call: Callable[[Sequence[Any]], Any]
) -> type[OperatorFunction]:
    recorder = interpreter.tracer.recorder

    def forward(ctx: Any, *values: Any) -> object:
        first = len(recorder.calls)
        made = call(values)
        results = made if type(made) is tuple else (made,)
        if holds_wrapper(results):
            raise _refused(name, "of a tensor subclass")
        if not all(type(result) is TracedTensor for result in results):
            raise _refused(name, "of what is no tensor")
        if any(result is value for result in results for value in values):
            raise _refused(name, "of a write")
        if any(_draws(op) for op, *_ in recorder.calls[first:]):
            raise _refused(name, "of random numbers")
        ctx.save_for_backward(*values)
        return made

    def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, ...]:
        tracer = interpreter.tracer
        before, tracer.replayable = tracer.replayable, False
        interpreter.differentiates += 1
        try:
            with torch.enable_grad():
                leaves = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
                made = call(leaves)
                results = made if type(made) is tuple else (made,)
                pairs = [(r, g) for r, g in zip(results, gradients, strict=True) if r.requires_grad]
            return torch.autograd.grad(
                [r for r, _ in pairs], leaves, [g for _, g in pairs], allow_unused=True
            )
        finally:
            tracer.replayable = before
            interpreter.differentiates -= 1

    body = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (OperatorFunction,), {**body, "operator": call, "__qualname__": name})


def _draws(op: object) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(op, "tags", ())


def _refused(name: str, of_what: str) -> BreakRequested:
    return BreakRequested("unsupported-tensor", f"the gradient of {name}, {of_what}")


def _gather(value: Any, found: list[object]) -> None:
    cls = type(value)
    if cls is list or cls is tuple:
        for item in value:
            _gather(item, found)
    elif cls is dict:
        _gather(tuple(value.values()), found)
    elif cls in TENSORS and value.requires_grad and not any(value is other for other in found):
        found.append(value)


def _replaced(value: Any, given: dict[int, object]) -> object:
    cls = type(value)
    if cls is list or cls is tuple:
        return cls([_replaced(item, given) for item in value])
    if cls is dict:
        return {key: _replaced(item, given) for key, item in value.items()}
    return given.get(id(value), value)
