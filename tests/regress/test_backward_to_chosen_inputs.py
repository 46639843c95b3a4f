"""`backward(inputs=[x])` of a history that began before the frame: where nothing in the frame led
to x, it got no gradient at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze


def outside(x: torch.Tensor, y: torch.Tensor) -> None:
    y.sum().backward(inputs=[x])


def both(x: torch.Tensor, y: torch.Tensor) -> None:
    (y.sum() + (x * x).sum()).backward(inputs=[x])


def behind_a_break(x: torch.Tensor, y: torch.Tensor) -> None:
    z = x.sin()
    braze.graph_break()
    z.sum().backward(inputs=[x])


def in_the_frame(x: torch.Tensor, y: torch.Tensor) -> None:
    x.sin().sum().backward(inputs=[x])


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("program", [outside, both, behind_a_break, in_the_frame])
def test_they_get_their_gradients(program: Any, backend: str) -> None:
    found = []
    for call in (program, braze.compile(program, backend=backend)):
        x = torch.linspace(0, 1, 3, dtype=torch.float64).requires_grad_()
        call(x, (x * 2).sin())
        found.append(x.grad)
    torch.testing.assert_close(found[1], found[0])
    assert found[0] is not None
