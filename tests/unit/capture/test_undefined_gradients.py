"""Custom functions whose backward is told which gradients do not come in: every choice of the
results that are used, for functions of one to six results."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from braze.trace import Journal


class _Told(torch.autograd.Function):
    """Its gradient says which of its results were used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, count: int) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple([x * (n + 1) for n in range(count)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        told = sum(1 << n for n, gradient in enumerate(gradients) if gradient is not None)
        present = [gradient for gradient in gradients if gradient is not None]
        return sum(present) * 100 + told, None


@pytest.mark.parametrize("count", range(1, 7))
def test_backward_is_told_which_gradients_come_in(count: int, journal: Journal) -> None:
    def program(x: Tensor) -> tuple[Tensor, ...]:
        made: tuple[Tensor, ...] = _Told.apply(x.sin(), count)  # type: ignore[no-untyped-call]
        return tuple([each.cos() for each in made])

    compiled = braze.compile(program)
    for used in itertools.product((False, True), repeat=count):
        if not any(used):
            continue
        x = torch.linspace(-1, 1, 4, requires_grad=True)
        found = []
        for function in (compiled, program):
            results = [each.sum() for each, is_used in zip(function(x), used) if is_used]
            found.append(torch.autograd.grad(sum(results), x)[0])  # type: ignore[arg-type]
        torch.testing.assert_close(*found)
    outcomes = {record.outcome for record in journal.records()}
    assert "graph" in outcomes
    breaks = [r.graph_break for r in journal.records() if r.graph_break is not None]
    assert bool(breaks) == (count > 4)
