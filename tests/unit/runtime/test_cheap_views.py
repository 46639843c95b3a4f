"""Views made again by operators whose backward copies nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from braze.ir.graph import Alias, Output, Value
from braze.ir.types import TensorType
from braze.runtime.cheap_views import cheap_view_for

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
    made = cheap_view_for(
        base, Output(Value(1, kind), Alias(value, shape, stride, offset)), (shape, stride, offset)
    )
    assert made.shape == expected.shape and made.stride() == expected.stride()
    assert made.storage_offset() == offset and made._base is base and torch.equal(made, expected)
    is_strided = type(made.grad_fn).__name__.startswith("AsStrided")
    assert is_strided is not whole
    tangent = torch.randn(shape)
    (gradient,) = torch.autograd.grad(made, leaf, tangent, retain_graph=True)
    assert torch.equal(gradient, torch.autograd.grad(expected, leaf, tangent)[0])
