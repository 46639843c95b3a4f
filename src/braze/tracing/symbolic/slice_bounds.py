"""Normalizes slice bounds and indices of symbolic sizes.

    slice(f32[s0], 0, -3, MAX)  ->  slice(f32[s0], 0, s0 - 3, s0)      where 3 <= s0 was assumed
                                ->  slice(f32[s0], 0, s0 - q0, s0)     where q0 is min(s0, 3)
    select(f32[s0], 0, -s1)     ->  select(f32[s0], 0, s0 - s1)

Whether a bound is negative or beyond the end is asked once, while the program is traced; later
stages could not tell from the expression. Whether there are as many as the last ones that are asked
for is assumed, since a length that is a number makes better kernels; it is not where the size at
hand has less, or where one program is to serve all sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.compat.torch.aten import aten
from braze.shapes.demands import is_computed
from braze.shapes.expr import symbols
from braze.shapes.facts import Relation
from braze.shapes.symbolic import (
    SymbolicSize,
    hint_of,
    plain_size,
    symbolic_maximum,
    symbolic_minimum,
)

# operator -> (where the shape is: of a tensor argument or a list of sizes, where the dimension is)
_SLICES = {
    aten.slice.Tensor: (0, 1),
    aten.slice_scatter.default: (0, 2),
    aten.slice_backward.default: (1, 2),
}
_SELECTS = {
    aten.select.int: (0, 1),
    aten.select_scatter.default: (0, 2),
    aten.select_backward.default: (1, 2),
}
BOUNDED = frozenset((*_SLICES, *_SELECTS))


def counted_from_start(op: torch._ops.OpOverload, args: tuple[Any, ...]) -> tuple[object, ...]:
    """The arguments with plain bounds, where a size or a bound is symbolic."""
    is_slice = op in _SLICES
    shape_at, dim_at = (_SLICES if is_slice else _SELECTS)[op]
    shape = _shape(args[shape_at])
    if dim_at >= len(args) and not is_slice:
        return args
    dim = args[dim_at] if dim_at < len(args) else 0
    if not shape or not -len(shape) <= dim < len(shape):
        return args
    size = shape[dim]
    bounds = args[dim_at + 1 : dim_at + (3 if is_slice else 2)]
    if not any(isinstance(number, SymbolicSize) for number in (size, *bounds)):
        return args
    if is_slice:
        padded = (*bounds, None, None)[:2]
        plain: tuple[Any, ...] = slice_range(size, *padded)
    else:
        plain = (bounds[0] + size if bounds[0] < 0 else bounds[0],)
    return (*args[:dim_at], dim, *plain, *args[dim_at + 1 + len(plain) :])


def slice_range(size: Any, start: Any, end: Any) -> tuple[Any, Any]:
    """(first, last + 1) of a slice, 0 <= first <= last + 1 <= size."""
    start = 0 if start is None else start
    end = size if end is None else end
    start = _from_end(size, -start) if start < 0 else _lesser(_greater(start, 0), size)
    return start, _lesser(_greater(end + size if end < 0 else end, start), size)


def _from_end(size: Any, count: Any) -> object:
    """Where the last `count` of a dimension begin, or all of it."""
    if _is_left_open(size, count):
        return size - plain_size(symbolic_minimum(size, count))
    return _lesser(_greater(size - count, 0), size)


def _is_left_open(size: object, count: Any) -> bool:
    """Whether `size >= count` is not known, and better not assumed: it does not hold of the sizes
    at hand, or the user wants one program for all."""
    if not isinstance(size, SymbolicSize) or is_computed(size, count):
        return False
    facts = size.facts
    count_now = count.now() if isinstance(count, SymbolicSize) else count
    if facts.follows(Relation(size.now() - count_now, ">=")) is not None:
        return False
    return size.hint < hint_of(count) or facts.are_all_asked_for or _is_marked(size)


def _is_marked(size: SymbolicSize) -> bool:
    """Whether a dimension that the user marked as dynamic is part of it."""
    named = symbols(size.facts.in_inputs(size.now()))
    return any(u.strict and u.symbol in named for u in size.facts.unknowns.values())


def _lesser(a: Any, b: Any) -> object:
    return plain_size(symbolic_minimum(a, b)) if is_computed(a, b) else min(a, b)


def _greater(a: Any, b: Any) -> object:
    return plain_size(symbolic_maximum(a, b)) if is_computed(a, b) else max(a, b)


def _shape(argument: Any) -> Sequence[object]:
    if isinstance(argument, torch.Tensor):
        place = getattr(argument, "place", None)
        return argument.shape if place is None else place.type.shape
    sizes: Sequence[Any] = argument
    return sizes
