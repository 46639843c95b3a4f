"""Hooks on the gradients of tensors that a compiled function computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import braze
from tests.unit.capture.test_autograd_functions import leaves, living_standins
from tests.unit.capture.test_backward import breaks_of


def test_hooks_in_the_frame() -> None:
    before = living_standins()
    seen: list[Tensor] = []

    def step(w: Tensor, x: Tensor) -> Any:
        hidden = (w @ x).tanh()
        hidden.register_hook(lambda g: g * 2)
        hidden.retain_grad()
        first, second = hidden.exp(), hidden.sin()
        first.register_hook(lambda g: seen.append(g.sum()))
        handle = second.register_hook(lambda g: g * 100)
        second.register_hook(lambda g: g.clamp(-0.1, 0.1))
        handle.remove()
        (first.sum() + second.sum()).backward()
        assert hidden.grad is not None
        return hidden.grad * 1

    eager, actual = leaves(), leaves()
    compiled = braze.compile(step, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(*actual), step(*eager))
        for a, b in zip(actual, eager, strict=True):
            torch.testing.assert_close(a.grad, b.grad)
            a.grad = b.grad = None
    assert len(seen) == 4 and len(set(map(float, seen))) == 1
    assert breaks_of(compiled) == []
    assert living_standins() == before


def test_hooks_for_a_backward_afterwards_are_eagers() -> None:
    calls: list[int] = []

    def forward(w: Tensor, x: Tensor) -> Tensor:
        hidden = (w @ x).tanh()
        hidden.register_hook(lambda g: calls.append(1) or g * 2)  # type: ignore[func-returns-value]
        return hidden.exp().sum()

    eager, actual = leaves(), leaves()
    compiled = braze.compile(forward)
    forward(*eager).backward()
    compiled(*actual).backward()
    assert calls == [1, 1]
    for a, b in zip(actual, eager, strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert len(breaks_of(compiled)) == 1
