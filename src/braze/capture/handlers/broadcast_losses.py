"""`torch.broadcast_tensors` of symbolic sizes, which C++ would take as numbers, the shape of its
results, and the losses that call it, whose Python code then asks whether sizes are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.state.guard_context import TENSORS
from braze.compat import private_names as private
from braze.shapes.symbolic import ProgramInt, plain_size, program_value
from braze.tracing.shape_rules.strides import broadcast_shape

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_LOSSES = (
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
)


@answers(torch.broadcast_tensors)
def broadcast(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """Each tensor expanded to the common shape."""
    tensors = tuple(args[0]) if len(args) == 1 and type(args[0]) in (list, tuple) else args
    if not _are_symbolic(tensors):
        return leaf_call(interpreter, torch.broadcast_tensors, args, kwargs)
    shapes = tuple([tuple(map(plain_size, tensor.shape)) for tensor in tensors])
    try:
        common = tuple(map(program_value, broadcast_shape(shapes)))
    except RuntimeError:
        return leaf_call(interpreter, torch.broadcast_tensors, args, kwargs)
    return tuple(
        [leaf_call(interpreter, torch.Tensor.expand, (tensor, common), {}) for tensor in tensors]
    )


@answers(private.infer_size)
def infer_size(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> Any:
    """The common shape of two, which `torch.distributions.kl` asks for."""
    if kwargs or not any(type(size) is ProgramInt for shape in args for size in shape):
        return interpreter.native(private.infer_size, *args, **kwargs)
    shapes = tuple([tuple(map(plain_size, shape)) for shape in args])
    return torch.Size(map(program_value, interpreter.native(broadcast_shape, shapes)))


def _loss_of(function: Any) -> None:
    @answers(function)
    def loss(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        tensors = [value for value in (*args, *kwargs.values()) if type(value) in TENSORS]
        if _are_symbolic(tensors):
            return interpreter.call_python(function, args, kwargs)
        return leaf_call(interpreter, function, args, kwargs)


for _function in _LOSSES:
    _loss_of(_function)


def _are_symbolic(tensors: Any) -> bool:
    return all(type(tensor) in TENSORS for tensor in tensors) and any(
        type(size) is ProgramInt for tensor in tensors for size in tensor.shape
    )
