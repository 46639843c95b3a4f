"""Writes through `x.data`: where the graph ends, and where it does not have to."""

from __future__ import annotations

from typing import Any

import torch

import braze
from braze.ir.graphs.print_graph import parse_graph, print_graph


def _breaks(function: Any, *args: Any) -> int:
    notes = braze.explain(function, backend="aot_eager")(*args).break_reasons
    assert {note.code for note in notes} <= {"data-write"}
    return len(notes)


def _leaf() -> torch.Tensor:
    return torch.arange(3.0).requires_grad_()


def test_what_a_backward_may_read_ends_the_graph() -> None:
    def changes_its_operand(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * y
        y.data.add_(1)
        return z

    assert _breaks(changes_its_operand, _leaf(), torch.ones(3)) == 1
    assert _breaks(changes_its_operand, torch.ones(3), torch.ones(3)) == 0


def test_a_step_by_hand_is_one_graph() -> None:
    def step(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        loss = (weight * x).sum()
        loss.backward()
        assert weight.grad is not None
        weight.data.sub_(0.1 * weight.grad)
        return loss.detach()

    weight, x = _leaf(), torch.ones(3)
    assert _breaks(step, weight, x) == 0
    before = weight._version
    braze.compile(step, backend="aot_eager")(weight, x)
    assert weight._version == before


def test_a_write_before_the_first_read_is_in_the_graph() -> None:
    def averages(mean: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        mean.data.mul_(0.9).add_(x.data, alpha=0.1)
        return x * mean

    assert _breaks(averages, torch.ones(3), _leaf()) == 0


def test_a_graph_that_writes_past_a_version_prints_and_parses() -> None:
    text = (
        "graph {\n"
        "  input %0: f32[3][1]cpu\n"
        "  %1: f32[3][1]cpu = aten.add.Tensor(%0, 1)\n"
        "  output %1 view of %0 [3][1] + 0 detached uncounted\n"
        "  write %0 <- %1 no_grad times 0\n"
        "}\n"
    )
    assert print_graph(parse_graph(text)) == text
