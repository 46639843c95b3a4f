"""Views of a graph's results and inputs whose backward is a view, too, or that of eager.

    base.as_strided((6, 4), (4, 1), 0)   the backward fills zeros and copies
    base.view(6, 4)                      the same view of a contiguous base: the backward is a view
    base.slice(0, 2)                     the program's own: the gradient has eager's strides

Where a view does not show all of its base, it is made by the program's own steps. `as_strided`
makes it where those are not known: its gradient has the strides of the base.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

import torch

from braze.compat.torch.autograd_engine import as_piece
from braze.ir.graphs.graph import Output
from braze.ir.graphs.run_graph import view_for
from braze.ir.types import TensorType

Numbers: TypeAlias = tuple[int, ...]
# Dimensions permuted, sizes viewed as, dimensions permuted; None: left out.
_Steps: TypeAlias = tuple[Numbers | None, Numbers | None, Numbers | None]


def view_for_autograd(
    base: torch.Tensor, output: Output, place: tuple[Numbers, Numbers, int, tuple[Any, ...]]
) -> torch.Tensor:
    """What `view_for` gives, by operators with a cheap backward where there are such, else by the
    program's. place: shape, stride, offset, and the arguments of the alias's steps."""
    shape, stride, offset, arguments = place
    alias, kind = output.alias, output.value.type
    assert alias is not None and isinstance(kind, TensorType)
    if output.detached or output.uncounted or output.is_untracked or not base.requires_grad:
        return view_for(base, output, place[:3])
    if not (output.is_piece or offset or base.dtype is not kind.dtype):
        steps = _steps(base.shape, base.stride(), shape, stride)
        if steps is not None:
            return _permuted(base, steps)
    if not alias.steps:
        return view_for(base, output, place[:3])
    view = base
    for step, rest in zip(alias.steps, arguments):
        view = step.op(view, *rest)
    return as_piece(view) if output.is_piece else view


def _permuted(base: torch.Tensor, steps: _Steps) -> torch.Tensor:
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
