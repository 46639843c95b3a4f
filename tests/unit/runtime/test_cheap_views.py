"""Views made again by operators whose backward copies nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.ir.graphs.graph import Alias, Output, Value
from braze.ir.types import TensorType
from braze.runtime.autograd.differentiable_views import view_for_autograd

WHOLE: tuple[tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    (torch.randn(2, 3, 4), lambda b: b.view(6, 4)),
    (torch.randn(2, 3, 4), lambda b: b.view(2, 3, 4)),
    (torch.randn(2, 3, 4), lambda b: b.transpose(0, 2)),
    (torch.randn(2, 3, 4), lambda b: b.view(2, 3, 2, 2).transpose(1, 2)),
    (torch.randn(2, 3, 4), lambda b: b.unsqueeze(1).unsqueeze(-1)),
    (torch.randn(2, 1, 4), lambda b: b.squeeze(1).t()),
    (torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), lambda b: b.flatten(2)),
    (
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda b: b.permute(0, 2, 3, 1),
    ),
    (torch.randn(0, 3), lambda b: b.t()),
    (torch.randn(1), lambda b: b.view(())),
    (torch.randn(()), lambda b: b.view(1, 1)),
)
OTHERS: tuple[tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]], ...] = (
    (torch.randn(4, 3), lambda b: b[1:]),
    (torch.randn(4, 3), lambda b: b[:, :1]),
    (torch.randn(4, 3), lambda b: b[:2]),
    (torch.randn(4, 1), lambda b: b.expand(4, 3)),
    (torch.randn(4, 4), lambda b: b.diagonal()),
)


@pytest.mark.parametrize(
    ("whole", "case"), [(True, c) for c in WHOLE] + [(False, c) for c in OTHERS]
)
def test_views(
    whole: bool, case: tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]
) -> None:
    data, view = case
    leaf = data.clone().requires_grad_()
    base = leaf * 2
    expected = view(base)
    shape, stride = tuple(expected.shape), expected.stride()
    offset = expected.storage_offset()
    kind = TensorType(base.dtype, shape, stride, base.device)
    value = Value(0, TensorType(base.dtype, tuple(base.shape), base.stride(), base.device))
    made = view_for_autograd(
        base,
        Output(Value(1, kind), Alias(value, shape, stride, offset)),
        (shape, stride, offset, ()),
    )
    assert made.shape == expected.shape and made.stride() == expected.stride()
    assert made.storage_offset() == offset and made._base is base and torch.equal(made, expected)
    is_strided = type(made.grad_fn).__name__.startswith("AsStrided")
    assert is_strided is not whole
    tangent = torch.randn(shape)
    (gradient,) = torch.autograd.grad(made, leaf, tangent, retain_graph=True)
    assert torch.equal(gradient, torch.autograd.grad(expected, leaf, tangent)[0])


STEPS: tuple[Callable[[torch.Tensor], Any], ...] = (
    lambda x: x[1:],
    lambda x: x.narrow(0, 0, 2).t(),
    lambda x: x.diagonal(),
    lambda x: x.expand(2, *x.shape),
    lambda x: x.unfold(0, 2, 1),
    lambda x: x.select(1, 0),
    lambda x: x.split(2)[0],
    lambda x: x.unbind(1)[1],
    lambda x: x.unsqueeze(0)[..., ::2],
)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("view", STEPS)
def test_gradients_have_eagers_strides(view: Callable[[Any], Any], dynamic: bool | None) -> None:
    compiled = braze.compile(view, fullgraph=True, dynamic=dynamic)
    for data in (torch.randn(4, 3).t(), torch.randn(3, 9)[:, ::2], torch.randn(3, 1).expand(3, 4)):
        made = []
        for run in (view, compiled):
            leaf = data.detach().requires_grad_()
            result = run(leaf)
            (gradient,) = torch.autograd.grad(result, leaf, torch.ones_like(result))
            made.append((gradient.tolist(), gradient.stride(), result.stride()))
        assert made[0] == made[1]
