"""Views of a graph's results and inputs whose backward is a view, too.

    base.as_strided((6, 4), (4, 1), 0)   the backward fills zeros and copies
    base.view(6, 4)                      the same view of a contiguous base: the backward is a view

Where a view does not show all of its base (a slice), `as_strided` it is: eager's backward fills
zeros and copies as well.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import torch

from braze.ir.graph import Output
from braze.ir.run_graph import view_for
from braze.ir.types import TensorType

Numbers: TypeAlias = tuple[int, ...]
# Dimensions permuted, sizes viewed as, dimensions permuted; None: left out.
_Steps: TypeAlias = tuple[Numbers | None, Numbers | None, Numbers | None]


def cheap_view_for(
    base: torch.Tensor, output: Output, place: tuple[Numbers, Numbers, int]
) -> torch.Tensor:
    """What `view_for` gives, by operators with a cheap backward where there are such."""
    shape, stride, offset = place
    kind = output.value.type
    assert isinstance(kind, TensorType)
    is_own = output.detached or output.uncounted or output.is_piece
    if is_own or offset or not base.requires_grad or base.dtype is not kind.dtype:
        return view_for(base, output, place)
    steps = _steps(base.shape, base.stride(), shape, stride)
    if steps is None:
        return view_for(base, output, place)
    first, sizes, last = steps
    view = base if first is None else base.permute(first)
    if sizes is not None:
        view = view.view(sizes)
    return view if last is None else view.permute(last)


@functools.lru_cache(maxsize=1024)
def _steps(shape: Numbers, stride: Numbers, wanted: Numbers, steps: Numbers) -> _Steps | None:
    """How a dense tensor becomes another one on the same memory; None if one of them has gaps."""
    first, last = _order(shape, stride), _order(wanted, steps)
    if first is None or last is None:
        return None
    before = tuple([shape[d] for d in first])
    after = tuple([wanted[d] for d in last])
    if _product(before) != _product(after):
        return None
    back = tuple([last.index(d) for d in range(len(last))])
    if before == after:  # one permutation does both
        both = tuple([first[d] for d in back])
        return (None, wanted, None) if _is_ordered(both) else (both, None, None)
    return (
        None if _is_ordered(first) else first,
        after,
        None if _is_ordered(back) else back,
    )


def _order(shape: Numbers, stride: Numbers) -> Numbers | None:
    """The dimensions from the outermost in memory to the innermost; None where they leave gaps,
    overlap, or a dimension of size one has not the stride that its place in memory gives it: that
    of the next larger one, behind which it is sorted."""
    order = sorted(range(len(shape)), key=lambda d: (-stride[d], shape[d] == 1))
    step = 1
    for d in reversed(order):
        if stride[d] != step:
            return None
        step *= shape[d]
    return tuple(order)


def _is_ordered(order: Numbers) -> bool:
    return order == tuple(range(len(order)))


def _product(shape: Numbers) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
