"""Makes fake tensors for real input tensors, and decides which inputs can be traced."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from braze.compat.torch.autograd_engine import (
    is_batched,
    is_piece,
    is_plain_view,
    views_what_needs_no_gradient,
)
from braze.compat.torch.dispatcher import (
    TorchFunction,
    has_custom_dispatch,
    is_functorch_wrapped,
    torch_function_of,
)
from braze.compat.torch.nn_modules import is_parameter
from braze.ir.graphs.graph import Value
from braze.ir.types import TensorType
from braze.tracing.errors import Untraceable
from braze.tracing.fake_tensor import Place, TracedTensor, new_fake, with_history
from braze.tracing.graph_recorder import GraphRecorder
from braze.tracing.shape_rules.strides import tensor_type

# (shape, stride), with symbolic sizes among them.
Layout: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]]


def check_traceable(tensor: torch.Tensor, is_transformed: bool = False) -> None:
    """Raise Untraceable for a tensor that strided metadata does not describe. is_transformed: the
    graph is for calls under transforms of torch.func, whose tensors are inputs."""
    cls = type(tensor)
    if cls is not torch.Tensor and cls is not torch.nn.Parameter:
        if has_custom_dispatch(cls):
            raise Untraceable(f"a tensor subclass with its own dispatch: {cls.__name__}")
        if torch_function_of(cls) is TorchFunction.OWN:
            raise Untraceable(
                f"a tensor subclass with a __torch_function__ of its own: {cls.__name__}"
            )
    if tensor.layout is not torch.strided:
        raise Untraceable(f"a tensor of layout {tensor.layout}")
    if tensor.is_quantized or tensor.is_nested:
        raise Untraceable("a quantized or nested tensor")
    if tensor.is_conj() or tensor.is_neg():
        raise Untraceable("a lazily conjugated or negated tensor: call resolve_conj() first")
    if tensor._is_zerotensor():
        raise Untraceable("a tensor of zeros without memory")
    is_wrapped = is_functorch_wrapped(tensor)
    if (is_wrapped and not is_transformed) or (is_batched(tensor) and not is_wrapped):
        raise Untraceable("a tensor of a function transform that is active outside")


def input_type(tensor: torch.Tensor, layout: Layout | None = None) -> TensorType:
    """The type of a real tensor; layout: its sizes and strides, where some are symbolic."""
    shape, stride = (tuple(tensor.shape), tensor.stride()) if layout is None else layout
    if tensor.requires_grad:
        return TensorType(tensor.dtype, shape, stride, tensor.device, True)
    return tensor_type(tensor.dtype, shape, stride, tensor.device)


def wrap_input(place: Place, real: torch.Tensor | None) -> TracedTensor:
    """The fake tensor of an input: a leaf where the real tensor is one, a Parameter where it is."""
    inference = real is not None and real.is_inference()
    if inference or torch.is_inference_mode_enabled():
        with torch.inference_mode(inference):
            return _wrap_input(place, real)
    return _wrap_input(place, real)


def _wrap_input(place: Place, real: torch.Tensor | None) -> TracedTensor:
    fake = new_fake(place, place.type.requires_grad)
    if real is not None and not real.is_leaf:
        with torch.enable_grad():
            views_leaf, place.is_piece = _views_a_leaf(real), is_piece(real)
            place.forgets_itself = views_what_needs_no_gradient(real)
            # Its history lies outside the trace; with one inside it may be written to, as in eager.
            viewed = fake.view(fake.shape) if views_leaf else with_history(fake)
            assert isinstance(viewed, TracedTensor)
            fake = viewed
    elif real is not None and real.requires_grad:
        place.forgets_views = real._is_view()
    elif real is not None and real._is_view():
        place.refuses_gradients = not is_plain_view(real)
    if is_parameter(real):
        fake._is_param = True
    if getattr(real, "_is_buffer", False):
        fake._is_buffer = True
    return fake


def set_gradients(recorder: GraphRecorder, fake: TracedTensor, wanted: bool) -> None:
    """Let the input of a fake tensor need gradients or not, of which nothing was read before."""
    place = fake.place
    kind = place.type
    place.type = TensorType(kind.dtype, kind.shape, kind.stride, kind.device, wanted)
    value = Value(place.value.index, place.type)
    recorder.input_values[place.input_index] = place.value = value


def _views_a_leaf(tensor: torch.Tensor) -> bool:
    """Whether autograd refuses to write to the tensor, since a leaf's memory would change. Of a
    leaf that was itself a view when it began to need gradients, the base needs none."""
    base = tensor._base
    return base is not None and base.is_leaf
