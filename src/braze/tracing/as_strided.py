"""Traces `as_strided`: views described by sizes, strides and offset alone.

    x.as_strided(shape, stride)              begins where x does
    x.as_strided(shape, stride, offset)      offset counts from the start of the storage

A graph knows the elements of a base, not its storage: a view that reaches memory outside of the
base, or gaps inside of it, is refused. An offset that counts from the start of an input's storage
ties the trace to the input's own offset (`Tracer.used_offsets`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.compat.torch.aten import aten
from braze.ir.types import Size
from braze.tracing.errors import Untraceable
from braze.tracing.fake_tensor import Place, Step, TracedTensor, is_detached, new_fake
from braze.tracing.graph_recorder import data_step
from braze.tracing.shape_rules.infer import infer_view
from braze.tracing.shape_rules.strides import is_dense, tensor_type
from braze.tracing.view_inverse import scatter_strided

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer


def strided_view(
    tracer: Tracer,
    viewed: TracedTensor,
    shape: Sequence[Size],
    stride: Sequence[Size],
    offset: Size | None = None,
) -> TracedTensor:
    """`as_strided` of a view is `as_strided` of its base."""
    if any(type(step) is int and step < 0 for step in stride):
        raise RuntimeError(
            "as_strided: Negative strides are not supported at the moment, "
            f"got strides: {list(stride)}"
        )
    place = viewed.place
    base = place.base or place
    if offset is not None:
        tracer.note_offset(base)
    first = place.offset if offset is None else offset
    start: Any = first - base.offset
    _check_inside(base, shape, stride, start)
    is_plain = all(type(n) is int for n in (*place.type.shape, *place.type.stride))
    if place is not base and is_plain and viewed.requires_grad and torch.is_grad_enabled():
        # Eager drops the gradients of elements that the view itself does not have.
        _check_inside(place, shape, stride, first - place.offset)
    here = base
    if is_detached(place):  # neither gradients nor writes find the way back through what is skipped
        here = _view(tracer, here, (), aten.detach.default).place
        here.data_step = data_step(place)
    if start:
        # Every step begins where its parent does: in the real storage, an input may begin anywhere,
        # and so may what a pass puts in place of a copy.
        reach = start + _reach(shape, stride) + 1
        here = _view(tracer, here, ((reach,), (1,))).place
        here = _view(tracer, here, (0, start, reach), aten.slice.Tensor).place
    return _view(tracer, here, (tuple(shape), tuple(stride)))


def strided_scatter(
    tracer: Tracer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> TracedTensor | None:
    """`as_strided_scatter(x, source, size, stride, offset)`; None where `x` is no dense memory."""
    into, source, shape, stride, offset = (*args, kwargs.get("storage_offset"))[:5]
    into = tracer.fake_of(into)
    place = into.place
    if not is_dense(place.type.shape, place.type.stride):
        return None
    if offset is not None:
        tracer.note_offset(place)
    start: Any = (place.offset if offset is None else offset) - place.offset
    _check_inside(place, shape, stride, start)
    (before, value), differentiable = tracer.bind_tracked((into, source))
    made = tensor_type(place.type.dtype, place.type.shape, place.type.stride, place.type.device)
    view = tensor_type(place.type.dtype, tuple(shape), tuple(stride), place.type.device)
    before = tracer.recorder.restride(before, made)
    result = scatter_strided(tracer.recorder, made, before, view, value, start)
    return new_fake(Place(made, result, 0, differentiable))


def _view(
    tracer: Tracer,
    parent: Place,
    arguments: tuple[object, ...],
    op: torch._ops.OpOverload = aten.as_strided.default,
) -> TracedTensor:
    made, start = infer_view(op, parent.type, parent.offset, arguments, {})
    step = Step(op, arguments, {})
    value = tracer.recorder.apply(step, tracer.recorder.read(parent), made)
    return new_fake(parent.view(made, value, start, step, torch.is_grad_enabled()))


def _check_inside(base: Place, shape: Sequence[Size], stride: Sequence[Size], start: Any) -> None:
    type = base.type
    if 0 in shape:
        return
    inside = start >= 0 and _reach(type.shape, type.stride) - start >= _reach(shape, stride)
    if not inside or 0 in type.shape or not is_dense(type.shape, type.stride):
        raise Untraceable("as_strided of memory that the tensor itself does not fill")


def _reach(shape: Sequence[Size], stride: Sequence[Size]) -> object:
    """The place of the last element, counted from the first."""
    return sum((size - 1) * step for size, step in zip(shape, stride))
