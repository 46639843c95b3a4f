"""Gradients of a norm's parameters alone: the input of a model's first norm wants none."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import braze
from braze.trace import Journal


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_library_call(kind: type[nn.Module], dtype: torch.dtype, journal: Journal) -> None:
    torch.manual_seed(0)
    norm, x = kind(24).to(dtype), torch.randn(40, 24).to(dtype)
    for parameter in norm.parameters():
        nn.init.normal_(parameter)

    def gradients(x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(norm(x).square().sum(), [*norm.parameters()])

    found = braze.compile(gradients)(x)
    (record,) = journal.records()
    assert not record.extern_ops and record.counters["kernels"]
    expected, exact = gradients(x), [*norm.double().parameters()]
    right = torch.autograd.grad(norm(x.double()).square().sum(), exact)
    for mine, eager, true in zip(found, expected, right, strict=True):
        least = torch.finfo(dtype).eps * true.norm()
        assert (mine.double() - true).norm() <= 2 * (eager.double() - true).norm() + least
