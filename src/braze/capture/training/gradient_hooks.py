"""Hooks on the gradients of tensors, and what needs a real autograd history.

    hidden.register_hook(f)     of a tensor that the frame computed: autograd's engine, which runs
                                on the fake tensors, has the hook interpreted when it comes to it

Such a hook serves backwards in the frame. Where the tensor's history goes on after it, the graph
breaks, and it is done for real. Hooks of tensors from outside are in `tensor_hooks.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.callbacks import Callback
from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call, unnoted_call
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.training.tensor_hooks import may_register_later, register_later
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@answers(torch.Tensor.register_post_accumulate_grad_hook)
def register_accumulate_hook(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`leaf.register_post_accumulate_grad_hook(hook)`, of a leaf from outside."""
    function = torch.Tensor.register_post_accumulate_grad_hook
    given = dict(zip(("tensor", "hook"), args)) | kwargs
    if may_register_later(interpreter, given["tensor"], leaf=True):
        return register_later(interpreter, function, given["tensor"], given["hook"])
    detail = f"Tensor.{function.__name__} needs the gradients themselves"
    raise BreakRequested("unsupported-tensor", detail)


@answers(torch.Tensor.register_hook)
def register_hook(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`tensor.register_hook(hook)`: gives a handle, as eager does."""
    given = dict(zip(("tensor", "hook"), args)) | kwargs
    tensor = given["tensor"]
    if may_register_later(interpreter, tensor, leaf=False):
        return register_later(interpreter, torch.Tensor.register_hook, tensor, given["hook"])
    _check_computed(interpreter, tensor, "Tensor.register_hook")
    interpreter.hooked.append(interpreter.outer_step)
    hook = Callback(interpreter, given["hook"])
    return unnoted_call(interpreter, torch.Tensor.register_hook, (tensor, hook), {})


@answers(torch.Tensor.retain_grad)
def retain_grad(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """`tensor.retain_grad()`: a backward in the frame leaves its gradient."""
    (tensor,) = args
    if type(tensor) is TracedTensor and tensor.requires_grad and tensor.is_leaf:
        return
    _check_computed(interpreter, tensor, "Tensor.retain_grad")
    if id(tensor) not in interpreter.retaining:
        interpreter.hooked.append(interpreter.outer_step)
        interpreter.retaining[id(tensor)] = tensor
        unnoted_call(interpreter, torch.Tensor.retain_grad, (tensor,), {})


def _check_computed(interpreter: Interpreter, tensor: object, name: str) -> None:
    if (
        interpreter.transforms
        or interpreter.request.is_watched is None
        or type(tensor) is not TracedTensor
        or tensor.grad_fn is None
        or interpreter.tracer.real_of(tensor) is not None
    ):
        raise BreakRequested("unsupported-tensor", f"{name} needs the gradients themselves")


@answers(torch.Tensor.detach_, torch.detach_)
def detach_in_place(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """Of a view it raises; a result that views nothing but what was made here is no view later. A
    tensor with a history becomes what `detach()` of it gives: others keep its history."""
    (tensor,) = args
    if type(tensor) is TracedTensor and tensor._is_view():
        return leaf_call(interpreter, torch.Tensor.detach_, args, kwargs)
    is_made_here = type(tensor) is TracedTensor and interpreter.tracer.real_of(tensor) is None
    # What is made of a subclass, eager makes as a view.
    is_plain = interpreter.guard_context.type_of(tensor) is torch.Tensor
    if is_made_here and is_plain and not tensor.requires_grad:
        return tensor  # there is nothing to detach it from
    is_alone = (
        is_made_here and not tensor.place.has_views and id(tensor) not in interpreter.retaining
    )
    if is_alone and is_plain and not interpreter.transforms:
        detached = unnoted_call(interpreter, torch.Tensor.detach, (tensor,), {})
        leaf_call(interpreter, torch.Tensor.detach_, (tensor,), {})
        tensor.become(detached.place)
        return tensor
    raise BreakRequested("unsupported-tensor", "Tensor.detach_ needs the gradients themselves")
