"""Rejects writes that a graph could not repeat as eager does them, and makes those without
gradients."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Value
from braze.ir.types import TensorType
from braze.shapes.memory_overlap import Extent, extents_meet
from braze.tracing.errors import Untraceable
from braze.tracing.fake_tensor import Place, TracedTensor, is_detached
from braze.tracing.shape_rules.strides import as_operand, overlaps_itself, shares_elements

# The views whose elements may share memory where those of what they are made from do not; those of
# `expand` are found by their strides.
_OVERLAPPING_VIEWS = frozenset({aten.as_strided.default, aten.unfold.default})
_COPIES = frozenset({aten.copy_.default, aten.fill_.Tensor})
# Functional forms without a derivative, of what does not depend on what was there before.
WITHOUT_DERIVATIVE = frozenset({aten.normal_functional.default})
# Autograd goes on as if these had written nothing.
_LOGICAL = re.compile("aten::logical_(and|or|xor|not)_")
# Operators that write one number everywhere, for which the order of elements does not count.
UNIFORM_WRITES = frozenset({aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default})


def is_view_outside(real: torch.Tensor | None) -> bool:
    """Whether the tensor of an input is a view, which `asks_view` guards."""
    return real is not None and real._is_view()


def check_write(place: Place, differentiable: bool, is_uniform: bool) -> None:
    """Raise Untraceable for a write to a place that must happen eagerly. differentiable: whether
    gradients flow through what is written. is_uniform: whether all elements get one number."""
    base = place.base or place
    if differentiable and base.refuses_gradients:
        raise Untraceable("gradients are written to a view that autograd refuses to change")
    base.asks_view = base.asks_view or differentiable or base.type.requires_grad
    for memory in (place.type, base.type):
        if overlaps_itself(memory.shape, memory.stride):
            raise Untraceable("a write to elements that share memory, as after expand()")
    is_repeatable = is_uniform and _is_whole_view(place)
    if _shares_elements(base) or (not is_repeatable and _shares_elements(place)):
        raise Untraceable("a write to elements that share memory, as after unfold()")
    if differentiable and is_detached(place):
        raise Untraceable("a detached tensor gets a history that its memory has not elsewhere")


def check_apart(written: Sequence[TracedTensor], given: Sequence[TracedTensor]) -> None:
    """Raise Untraceable where tensors given to one call are in one memory, to which it writes: an
    operator reads there what it has written, and a graph gives it copies. given: all that the call
    gets, those that it writes to among them."""
    bases = Counter(id(tensor.place.base or tensor.place) for tensor in given)
    if any(bases[id(tensor.place.base or tensor.place)] > 1 for tensor in written):
        raise Untraceable("one call writes to and is given tensors that share memory")


def check_order(op: object, written: Sequence[TracedTensor], given: Sequence[TracedTensor]) -> None:
    """Raise Untraceable where a call reads elements that it writes to under another layout: what
    eager reads there depends on the order of elements, or it refuses."""
    for target in written:
        for other in given:
            if _layout_of(target.place) == _layout_of(other.place):
                continue  # each element is read before it is written to
            if not have_common_elements(target.place, other.place):
                continue
            if op in _COPIES and _is_one_element(other.place.type):
                continue  # which is overwritten by itself
            raise Untraceable("one call writes to and reads elements that inputs share")


def have_common_elements(one: Place, other: Place) -> bool:
    """Whether two places have elements in common, or may have."""
    if (one.base or one) is not (other.base or other):
        return False
    first, second = _extent_of(one), _extent_of(other)
    return first is None or second is None or extents_meet(first, second)


def check_resized(
    op: torch._ops.OpOverload, written: Sequence[TracedTensor], kinds: Sequence[object]
) -> None:
    """Raise Untraceable where `out=` names a tensor of another size, which eager gives it. kinds:
    the types of what the call returns for it."""
    arguments = op._schema.arguments
    writes = [a for a in arguments if a.alias_info is not None and a.alias_info.is_write]
    if not all(a.is_out for a in writes) or len(written) != len(kinds):
        return
    for target, kind in zip(written, kinds):
        if isinstance(kind, TensorType) and kind.shape != target.place.type.shape:
            raise Untraceable("out= changes the sizes of a tensor")


def is_constant(target: TracedTensor, value: Value, functional: torch._ops.OpOverload) -> bool:
    """Whether autograd sees no way from a written tensor's old contents to the new ones, and the
    functional form has no derivative that says so: comparisons, and what draws random numbers."""
    assert isinstance(value.type, TensorType)
    kinds = (target.place.type.dtype, value.type.dtype)
    counts = [kind.is_floating_point or kind.is_complex for kind in kinds]
    return functional in WITHOUT_DERIVATIVE or counts == [True, False]


def write_constant(
    mode: AbstractContextManager[object],
    op: torch._ops.OpOverload,
    target: TracedTensor,
    source: torch.Tensor,
    others: Sequence[object],
) -> None:
    """Write what does not depend on the target, nor on other operands: the gradients of all of them
    are zeros, not None. mode: the trace."""
    if _LOGICAL.match(op._schema.name):
        raise Untraceable("autograd does not see what a logical operator writes")
    with mode:
        for other in others:
            if isinstance(other, torch.Tensor) and other.requires_grad:
                never = torch.zeros_like(source, dtype=torch.bool)
                source = torch.where(never, other, source)
        target.copy_(source)


# --- private ---------------------------------------------------------------------------------


def _layout_of(place: Place) -> tuple[object, ...]:
    return place.offset, place.type.shape, place.type.stride


def _is_one_element(kind: TensorType) -> bool:
    return all(size == 1 or step == 0 for size, step in zip(kind.shape, kind.stride))


def _extent_of(place: Place) -> Extent | None:
    """The memory of a place in its base's, in elements; None where sizes are symbols."""
    numbers = (place.offset, *place.type.shape, *place.type.stride)
    if not all(type(number) is int for number in numbers):
        return None
    dimensions: Any = tuple(zip(place.type.shape, place.type.stride))
    start: Any = place.offset
    if 0 in place.type.shape:
        return Extent(0, start, start, 1, ())
    last = sum((size - 1) * step for size, step in dimensions)
    return Extent(0, start, start + last + 1, 1, dimensions)


def _is_whole_view(place: Place) -> bool:
    """Whether a place is all of a view whose elements share memory. What is written to a part of
    one would go back with the view's other elements, which hold the old number."""
    if place.step is None or place.step.op not in _OVERLAPPING_VIEWS:
        return False
    return place.parent is None or not _shares_elements(place.parent)


def _shares_elements(place: Place) -> bool:
    """Whether several elements of a place are one in memory. Eager's kernels read and write such
    elements in turn, and results depend on the order; a graph reads all of them first."""
    walk = place
    while walk.step is not None and walk.parent is not None:
        if walk.step.op in _OVERLAPPING_VIEWS:
            break
        walk = walk.parent
    kind = as_operand(walk.type)
    return shares_elements(kind.shape, kind.stride)
