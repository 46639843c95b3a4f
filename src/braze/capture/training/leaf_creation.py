"""Tensors that begin to need gradients in the frame: parameters made here, `requires_grad_()`.

Such a tensor is a leaf of autograd's graph, which no captured graph can make. Its data is a result
like any other and the leaf is made of it after the graph ran; until then it may be passed on,
stored and, without gradients, written to. The first operator that gradients would flow through
breaks the graph, and goes on with the leaf as an input.

An input that begins to need gradients before anything was done with it does so before the graph
runs, which is traced as if it had needed them all along (gradient penalties, saliency maps). So
does one that ceases to need them (parameters that are frozen).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import begin_leaf, unnoted_call
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.state.guard_context import TENSORS
from braze.capture.state.reconstruction_calls import rebuild_leaf
from braze.capture.state.tensor_attributes import has_attributes
from braze.compat.torch.autograd_engine import is_piece
from braze.compat.torch.dispatcher import TorchFunction, storage_identity, torch_function_of
from braze.ir.captured.frame import FromConstant, NewCall, Recipe
from braze.ir.graphs.graph import Graph, operands
from braze.tracing import Untraceable
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.finalize import used_values
from braze.tracing.graph_inputs import set_gradients
from braze.tracing.shape_rules.strides import is_dense

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def leaf_recipe(interpreter: Interpreter, tensor: Any, writer: Any) -> Recipe | None:
    """How a leaf that began here is made, or None for any other tensor. writer: of the frame's
    recipes."""
    if id(tensor) not in interpreter.guard_context.new_leaves:
        return None
    data = torch.Tensor.detach(tensor)
    cls = interpreter.guard_context.type_of(tensor)
    settings = [FromConstant(cls), FromConstant(tensor.requires_grad)]
    interpreter.left_leaves.add(id(tensor))
    gradient = interpreter.new_gradients.get(id(tensor))
    if gradient is not None:
        settings.append(writer.recipe(gradient))
    return NewCall(rebuild_leaf, (writer.result(data), *settings))


@answers(torch.nn.Parameter)
def make_parameter(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`nn.Parameter(data, requires_grad)`: a leaf on the memory of the data."""
    given = dict(zip(("data", "requires_grad"), args)) | kwargs
    if given.keys() - {"data", "requires_grad"} or len(args) > 2:
        return interpreter.native(torch.nn.Parameter, *args, **kwargs)
    data = given.get("data")
    if data is None:
        data = unnoted_call(interpreter, torch.empty, (0,), {})
    if type(data) is not TracedTensor:
        raise BreakRequested("unsupported-tensor", f"nn.Parameter of a {type(data).__name__}")
    if interpreter.guard_context.type_of(data) not in _PLAIN:
        raise BreakRequested("unsupported-tensor", "nn.Parameter of a tensor subclass")
    return _new_parameter(interpreter, data, given.get("requires_grad", True))


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _new_parameter(interpreter: Interpreter, data: object, requires_grad: object) -> object:
    made = unnoted_call(interpreter, torch.Tensor.detach, (data,), {})
    made._is_param = True
    interpreter.guard_context.give_class(made, torch.nn.Parameter)
    return begin_leaf(interpreter, made, bool(requires_grad))


@answers(torch.Tensor.requires_grad_)
def require_gradient(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """An input that begins to need gradients, or ceases to, would be another kind of input."""
    wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    if type(wanted) is not bool:
        return unnoted_call(interpreter, torch.Tensor.requires_grad_, args, kwargs)  # raises
    return set_requires_grad(interpreter, args[0], wanted)


def set_requires_grad(interpreter: Interpreter, tensor: Any, wanted: bool) -> object:
    """`tensor.requires_grad_(wanted)`."""
    if type(tensor) is TracedTensor and interpreter.tracer.real_of(tensor) is None:
        if tensor.requires_grad is wanted or not tensor.is_leaf:
            return unnoted_call(interpreter, torch.Tensor.requires_grad_, (tensor, wanted), {})
        if interpreter.tracer.step_now is None and is_piece(tensor):
            # The graph ends where the leaf is used, and the leaf made again would be no piece.
            raise BreakRequested("unsupported-tensor", "requires_grad_() of one of several views")
        if wanted and tensor.place.has_views:
            # They need gradients from now on, too; views of the leaf made again would be others.
            raise BreakRequested(
                "unsupported-tensor", "requires_grad_() of what there are views of"
            )
        return begin_leaf(interpreter, tensor, wanted)
    if tensor.requires_grad is wanted:
        return tensor
    if not tensor.is_leaf:
        return unnoted_call(interpreter, torch.Tensor.requires_grad_, (tensor, wanted), {})
    if not _is_untouched(interpreter, tensor):
        raise BreakRequested("unsupported-tensor", f"Tensor.requires_grad_({wanted}) of an input")
    unnoted_call(interpreter, torch.Tensor.requires_grad_, (tensor, wanted), {})
    set_gradients(interpreter.tracer.recorder, tensor, wanted)
    interpreter.guard_context.switched[id(tensor)] = tensor
    interpreter.deferred_calls.append((torch.Tensor.requires_grad_, (tensor, wanted)))
    return tensor


def _is_untouched(interpreter: Interpreter, tensor: object) -> bool:
    """Whether an input may need gradients or not from the graph's beginning: nothing was done with
    it before, and nobody else has it."""
    if type(tensor) is not TracedTensor or interpreter.request.is_watched is None:
        return False
    real, place = interpreter.tracer.real_of(tensor), tensor.place
    return (
        real is not None
        and not interpreter.transforms
        and place.input_index >= 0
        and not (place.version or place.shares_memory)
        and not (real._is_view() or real.is_inference())
        and not (real._backward_hooks or real._post_accumulate_grad_hooks)
        and not interpreter.tensor_names.knows(tensor)
        and place.value not in used_values(interpreter.tracer.recorder.calls)
    )


def switched_leaves(
    interpreter: Interpreter, kept: Sequence[int], graph: Graph
) -> tuple[tuple[int, bool], ...]:
    """Which inputs of the graph begin to need gradients (True) or cease to (False). kept: its
    inputs, as numbers of the tracer's. Raises Untraceable where a view of one was taken before."""
    if not interpreter.guard_context.switched:
        return ()
    given = {*graph.inputs, *(constant.value for constant in graph.constants)}
    made = {value for node in graph.nodes for value in node.outputs}
    read = {value for node in graph.nodes for value in operands(node)}
    read.update(output.value for output in graph.outputs)
    if not read <= given | made:
        raise Untraceable("requires_grad_() of an input of which there is a view")
    inputs = [interpreter.tracer.inputs[index] for index in kept]
    return tuple(
        [
            (number, tensor.requires_grad)
            for number, (tensor, real) in enumerate(inputs)
            if id(tensor) in interpreter.guard_context.switched
            and tensor.requires_grad is not real.requires_grad
        ]
    )


# --- copies --------------------------------------------------------------------------------------


@answers(torch.nn.Parameter.__deepcopy__)
def deepcopy_parameter(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """A parameter on a clone of the data; the memo is `copy.deepcopy`'s own business."""
    tensor = args[0]
    if interpreter.guard_context.type_of(tensor) is not torch.nn.Parameter:
        raise BreakRequested("unsupported-tensor", "copy.deepcopy of a parameter's subclass")
    data = unnoted_call(interpreter, torch.Tensor.detach, (tensor,), {})
    data = unnoted_call(interpreter, torch.Tensor.clone, (data,), {})
    return _new_parameter(interpreter, data, tensor.requires_grad)


@answers(torch.Tensor.__deepcopy__)
def deepcopy_tensor(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """A clone, where nothing but the elements has to be copied: deep copies of tensors that share
    memory share memory, too."""
    tensor, memo = args
    if type(tensor) not in TENSORS or not tensor.is_leaf:
        raise BreakRequested("unsupported-tensor", "copy.deepcopy of a tensor with a history")
    guard_context = interpreter.guard_context
    real = interpreter.tracer.real_of(tensor)
    place = tensor.place
    shape, stride = place.type.shape, place.type.stride
    key = id(place.base or place) if real is None else storage_identity(real)
    plain = (
        torch_function_of(guard_context.type_of(tensor)) is TorchFunction.NONE
        and is_dense(shape, stride)
        and place.offset == 0
        and not has_attributes(interpreter, tensor)
        and interpreter.attribute(tensor, "grad") is None
        and (id(memo), key) not in guard_context.deep_copies
    )
    if not plain:
        raise BreakRequested("unsupported-tensor", "copy.deepcopy of a tensor with more than data")
    interpreter.tracer.note_offset(place)
    guard_context.deep_copies[(id(memo), key)] = memo
    data = unnoted_call(interpreter, torch.Tensor.detach, (tensor,), {})
    made = unnoted_call(interpreter, torch.Tensor.clone, (data,), {})
    return begin_leaf(interpreter, made, True) if tensor.requires_grad else made
