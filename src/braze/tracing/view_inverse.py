"""Functionalizes writes to views: for each view operator, the new value of its base.

What is not in the table is written by its strides, element by element.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Argument, Value
from braze.ir.types import Size, TensorType
from braze.tracing.errors import Untraceable
from braze.tracing.fake_tensor import Step
from braze.tracing.shape_rules.strides import as_operand, is_dense, memory_order

if TYPE_CHECKING:
    from braze.tracing.graph_recorder import GraphRecorder

# (recorder, step, the parent's old value, the view's new value) -> the parent's new value
InverseStep: TypeAlias = Callable[["GraphRecorder", Step, Value, Value], Value]


def _tensor(value: Value) -> TensorType:
    """The type of a value that is a tensor."""
    assert isinstance(value.type, TensorType)
    return value.type


def _scatter_by(op: torch._ops.OpOverload, *dims: int) -> InverseStep:
    """dims: which of the view's arguments are dimensions."""

    def inverse(recorder: GraphRecorder, step: Step, before: Value, value: Value) -> Value:
        if not _tensor(before).dtype.is_complex:
            return recorder.emit_value(op, (before, value, *step.args), step.kwargs)
        # PyTorch differentiates a write to a view of complex numbers, and not these operators.
        rank = len(_tensor(before).shape)
        args = [n % rank if place in dims else n for place, n in enumerate(step.args)]
        named = {k: n % rank if k.startswith("dim") else n for k, n in step.kwargs.items()}
        parts = [recorder.emit(aten.view_as_real.default, (v,), {}) for v in (before, value)]
        if op is aten.diagonal_scatter.default:  # a diagonal is the last dimension
            parts[1] = recorder.emit(aten.transpose.int, (parts[1], -2, -1), {})
        made = recorder.emit(op, (*parts, *args), named)
        return recorder.emit_value(aten.view_as_complex.default, (made,), {})

    return inverse


def _same_op(op: torch._ops.OpOverload) -> InverseStep:
    """Operators that undo themselves: transpose, t, conj."""

    def inverse(recorder: GraphRecorder, step: Step, before: Value, value: Value) -> Value:
        return recorder.emit_value(op, (value, *step.args), step.kwargs)

    return inverse


def _other_op(op: torch._ops.OpOverload) -> InverseStep:
    def inverse(recorder: GraphRecorder, step: Step, before: Value, value: Value) -> Value:
        return recorder.emit_value(op, (value,), {})

    return inverse


def _reshape(recorder: GraphRecorder, step: Step, before: Value, value: Value) -> Value:
    return recorder.reshape(value, _tensor(before).shape)


def _identity(recorder: GraphRecorder, step: Step, before: Value, value: Value) -> Value:
    return value


def _permute(recorder: GraphRecorder, step: Step, before: Value, value: Value) -> Value:
    dims = step.args[0]
    dims = [d % len(dims) for d in dims]
    back = tuple(dims.index(d) for d in range(len(dims)))
    return recorder.emit_value(aten.permute.default, (value, back), {})


def _expand(recorder: GraphRecorder, step: Step, before: Value, value: Value) -> Value:
    shape, given = _tensor(before).shape, _tensor(value).shape
    if shape != given:
        before_it, made = as_operand(_tensor(before)), as_operand(_tensor(value))
        if torch.Size(before_it.shape).numel() != torch.Size(made.shape).numel():
            raise Untraceable("a write to an expanded tensor: elements share memory")
        return recorder.reshape(value, shape)
    return value


def _view_dtype(recorder: GraphRecorder, step: Step, before: Value, value: Value) -> Value:
    return recorder.emit_value(aten.view.dtype, (value, _tensor(before).dtype), {})


def scatter_strided(
    recorder: GraphRecorder,
    memory: TensorType,
    before: Value,
    view: TensorType,
    value: Value,
    start: Size,
) -> Value:
    """`before`, which has the strides of `memory`, with `value` at the places of `view`, whose
    strides count in the same memory, from element `start` on. In terms of elements: where a graph
    keeps `before` is not known here."""
    shape, stride = memory.shape, memory.stride
    if not is_dense(shape, stride):
        raise Untraceable("a write to a view of memory with gaps, by its strides")
    order = memory_order(shape, stride)
    back = tuple(order.index(d) for d in range(len(order)))
    emit = recorder.emit
    elements = emit(aten.permute.default, (before, order), {})
    sizes = elements.type.shape
    flat = recorder.reshape(elements, (math.prod(sizes),))
    options: dict[str, Argument] = {"dtype": torch.int64, "device": memory.device}
    places = emit(aten.arange.default, (math.prod(sizes),), options)
    places = emit(aten.as_strided.default, (places, view.shape, view.stride, start), {})
    places = recorder.reshape(places, (math.prod(view.shape),))
    value = recorder.reshape(value, (math.prod(view.shape),))
    flat = emit(aten.scatter.src, (flat, 0, places, value), {})
    back_in_order = (recorder.reshape(flat, sizes), back)
    return recorder.emit_value(aten.permute.default, back_in_order, {})


INVERSE_STEPS: dict[Any, InverseStep] = {
    aten.select.int: _scatter_by(aten.select_scatter.default, 0),
    aten.slice.Tensor: _scatter_by(aten.slice_scatter.default, 0),
    aten.diagonal.default: _scatter_by(aten.diagonal_scatter.default, 1, 2),
    aten.transpose.int: _same_op(aten.transpose.int),
    aten.t.default: _same_op(aten.t.default),
    aten._conj.default: _same_op(aten._conj.default),
    aten._neg_view.default: _same_op(aten._neg_view.default),
    aten.view_as_real.default: _other_op(aten.view_as_complex.default),
    aten.view_as_complex.default: _other_op(aten.view_as_real.default),
    aten.permute.default: _permute,
    aten.view.default: _reshape,
    aten._reshape_alias.default: _reshape,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.expand.default: _expand,
    aten.view.dtype: _view_dtype,
    aten.detach.default: _identity,
    aten.alias.default: _identity,
    aten.lift_fresh.default: _identity,
}
