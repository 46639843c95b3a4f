"""Operators that are said to ask for nothing but the order of strides: a view with gaps and a copy
of it give results of the same strides, forward and backward."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from braze.tracing.symbolic.speculative_copies import ASK_ORDER, SHOWN_TO_AUTOGRAD

Program = Callable[[torch.Tensor], Any]
aten = torch.ops.aten


class _Strides(TorchDispatchMode):
    """Notes the strides of every operator's results."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[Any]] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        results = result if isinstance(result, (tuple, list)) else (result,)
        strides = [r.stride() for r in results if isinstance(r, torch.Tensor)]
        self.found.setdefault(op._schema.name, []).append(strides)
        return result


def _both(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """A view with gaps, and a copy of it, their dimensions permuted alike."""
    torch.manual_seed(0)
    gapped = torch.randn(*shape[:-1], 2 * shape[-1])[..., ::2]
    copy = gapped.contiguous()
    return tuple([x.detach().permute(order).requires_grad_() for x in (gapped, copy)])  # type: ignore[return-value]


def _strides(program: Program, x: torch.Tensor) -> dict[str, list[Any]]:
    with _Strides() as strides:
        made = program(x)
        made = made[0] if isinstance(made, (tuple, list)) else made
        if made.requires_grad:
            made.mul(made).sum().backward()
    return strides.found


_ROWS = torch.tensor([1, 0])
_OF_ROWS: dict[str, Program] = {
    "products": lambda x: [x := x.detach()] and (x @ x.t()) + torch.addmm(x @ x.t(), x, x.t()),
    "batches": lambda x: (
        torch.bmm(x[None], x.t()[None])
        + torch.baddbmm(torch.zeros(1, len(x), len(x)), x[None], x.t()[None])
    ),
    "embedding": lambda x: functional.embedding(_ROWS, x),
    "gather": lambda x: x.gather(0, torch.zeros(2, 2, dtype=torch.long)),
    "selected": lambda x: (x.index_select(0, _ROWS), x[_ROWS])[0],
    "scatter": lambda x: x.scatter(0, torch.zeros(1, 2, dtype=torch.long), 1.0),
    "triangles": lambda x: x.tril() + x.triu(),
    "sorted": lambda x: x.sort(-1)[0].sum() + x.topk(2)[0].sum(),
    "like": lambda x: (
        [like(x) for like in (torch.zeros_like, torch.ones_like, torch.empty_like, torch.rand_like)]
        and torch.randn_like(x) + torch.full_like(x, 2)
    ),
    "new": lambda x: (x.new_zeros(2), x.new_ones(2), x.new_empty(2), x.new_full((2,), 1))[0],
}
_OF_ANY: dict[str, Program] = {
    "reduced": lambda x: (
        x.sum(-1) + x.mean(-1) + x.amax(-1) + x.amin(-1) + x.prod(-1) + x.var(-1) + x.std(-1)
    ),
    "counted": lambda x: (x.argmax(-1), x.argmin(-1), x.any(-1), x.all(-1), torch.var_mean(x))[0],
    "running": lambda x: x.cumsum(-1) * x.cumprod(-1),
    "softmax": lambda x: x.softmax(-1) + x.log_softmax(-1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "joined": lambda x: torch.cat([x, x], -1),
    "padded": lambda x: torch.constant_pad_nd(x, (1, 1)),
    "repeated": lambda x: x.repeat([2] * x.dim()),
    "turned": lambda x: x.flip(-1) + x.roll(1, -1),
    "copied": lambda x: x.clone() + x.double() + aten.copy(x.detach(), x.detach()),
    "reshaped": lambda x: aten._unsafe_view(x.clone(memory_format=torch.contiguous_format), [-1]),
    "dropped": lambda x: torch.native_dropout(x, 0.5, True)[0] + torch.bernoulli(x.sigmoid()),
    "pointwise": lambda x: torch.where(x > 0, x + x.sigmoid(), x.exp() * 2),
}
_OF_IMAGES: dict[str, Program] = {
    "convolution": lambda x: functional.conv2d(
        x, torch.ones(2, x.shape[1], 1, 1, requires_grad=True)
    ),
    "batch norm": lambda x: aten.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
    "batch norm without statistics": lambda x: aten._native_batch_norm_legit.no_stats(
        x, None, None, True, 0.1, 1e-5
    ),
    "group norm": lambda x: functional.group_norm(x, 1),
    "pooled": lambda x: functional.max_pool2d(x, 2) + functional.avg_pool2d(x, 2),
    "pooled to a size": lambda x: functional.adaptive_avg_pool2d(x, 2),
}
_SHAPES = {
    (4, 6): (_OF_ROWS, _OF_ANY),
    (4, 2, 6): (_OF_ANY,),
    (4, 4, 4, 4): (_OF_IMAGES, _OF_ANY),
    (4, 1, 4, 4): (_OF_IMAGES,),
}
_PROGRAMS = [
    (name, program, shape)
    for shape, kinds in _SHAPES.items()
    for kind in kinds
    for name, program in kind.items()
]


@pytest.mark.parametrize(
    ("name", "program", "shape"), _PROGRAMS, ids=[str(p[0::2]) for p in _PROGRAMS]
)
def test_strides_are_the_same(name: str, program: Program, shape: tuple[int, ...]) -> None:
    for order in itertools.permutations(range(len(shape))):
        if shape.count(1) and order != tuple(sorted(order)):
            continue
        gapped, copy = _both(shape, order)
        listed = [_listed(_strides(program, x)) for x in (gapped, copy)]
        assert listed[0] == listed[1], order


def _listed(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: strides for name, strides in found.items() if name in ASK_ORDER - _OF_COMPOSITES}


# Functions made of others call these where a view is not dense, and where it is not they do not.
_OF_COMPOSITES = {"aten::clone", "aten::_unsafe_view", "aten::copy"}


def test_gradients_of_products_are_not() -> None:
    strides = [_listed(_strides(lambda x: x @ x.t(), x)) for x in _both((4, 6), (0, 1))]
    assert strides[0] != strides[1]


def test_every_operator_is_tried() -> None:
    found: set[str] = set()
    for _, program, shape in _PROGRAMS:
        found.update(_strides(program, _both(shape, tuple(range(len(shape))))[0]))
    assert not ASK_ORDER - found
    assert SHOWN_TO_AUTOGRAD <= ASK_ORDER
