"""Hooks on the gradients of tensors that a compiled function computes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import braze
from tests.unit.capture.test_autograd_functions import leaves, living_fakes
from tests.unit.capture.test_backward import breaks_of


def test_hooks_in_the_frame() -> None:
    before = living_fakes()
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
    assert living_fakes() == before


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


# --- hooks on parameters, with the whole step compiled -------------------------------------------


def _net() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def _same(make: Any, count: int = 5, between: Any = None) -> None:
    """Train two models made alike, one compiled; `between` is called on both before each step."""
    (eager, step), (ours, ours_step) = make(), make()
    compiled = braze.compile(ours_step, backend="aot_eager")
    for number in range(count):
        for model in (eager, ours) if between is not None else ():
            between(number, model)
        torch.manual_seed(number)
        x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
        torch.testing.assert_close(compiled(x, y), step(x, y))
    for p, q in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p, q)
        torch.testing.assert_close(p.grad, q.grad)


def _step_of(model: Any, optimizer: Any) -> Any:
    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def test_an_optimizer_in_the_backward() -> None:
    def make() -> Any:
        model = _net()
        own = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

        def update(parameter: Any) -> None:
            own[parameter].step()
            own[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)

        def step(x: Any, y: Any) -> Any:
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss.detach()

        return model, step

    _same(make)


def test_hooks_that_come_after_the_compile() -> None:
    def make() -> Any:
        model = _net()
        return model, _step_of(model, torch.optim.SGD(model.parameters(), 0.1))

    def triple(parameter: Any) -> None:
        parameter.grad.mul_(3)

    def between(number: int, model: Any) -> None:
        if number == 3:
            model[0].weight.register_post_accumulate_grad_hook(triple)
            model[2].weight.register_hook(lambda gradient: gradient * 2)

    _same(make, 6, between)
