"""Eager code that differentiates the gradients of a function that wrote to what it then read.

Random programs that train came to it most often: a step of an optimizer, then a model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze import pipeline
from braze.autograd.again import keep_for_again


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return braze.compile(function, options={"suppress_errors": False})  # type: ignore[no-any-return]


def _second(loss: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
    (first,) = torch.autograd.grad(loss, p, create_graph=True)
    return [first.detach(), *torch.autograd.grad(first.square().sum(), p)]


def test_a_parameter_that_was_written_to() -> None:
    def function(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            p.mul_(2)
        return (p * p * x).sum()

    x, found = torch.arange(3.0), []
    for call in (function, _compiled(function)):
        p = torch.ones(3, requires_grad=True)
        found.append([*_second(call(p, x), p), *_second(call(p, x), p)])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_an_optimizers_step_before_the_model(kind: Any) -> None:
    """The first step makes state that has the shape of what is written to."""
    torch.manual_seed(0)
    start, x, found = nn.Linear(3, 3), torch.randn(2, 3), []
    for compiles in (False, True):
        model = copy.deepcopy(start)
        optimizer = kind(model.parameters(), lr=0.1)

        def step(x: torch.Tensor, model: Any = model, optimizer: Any = optimizer) -> torch.Tensor:
            optimizer.step()
            result: torch.Tensor = model(x).square().mean()
            return result

        call = _compiled(step) if compiles else step
        values = []
        for _ in range(3):
            model.weight.grad = torch.ones(3, 3)
            values += _second(call(x), model.weight)
        found.append([*values, model.weight.detach()])
    torch.testing.assert_close(found[1], found[0])


def test_what_was_read_before_the_write_is_gone() -> None:
    """It is refused, as long as nobody keeps it."""

    def function(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        before = p.exp()
        with torch.no_grad():
            p.mul_(2)
        return (before * x + p * p).sum()

    p = torch.ones(3, requires_grad=True)
    loss = _compiled(function)(p, torch.arange(3.0))
    with pytest.raises(RuntimeError, match="cannot differentiate this backward"):
        torch.autograd.grad(loss, p, create_graph=True)


def test_a_later_write_is_an_error_as_in_eager() -> None:
    def function(p: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            p.mul_(2)
        return (p * p).sum()

    for call in (function, _compiled(function)):
        p = torch.ones(3, requires_grad=True)
        loss = call(p)
        with torch.no_grad():
            p.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, p, create_graph=True)


def test_draws_that_have_no_gradient_come_again_too() -> None:
    """What is drawn behind them is what it was."""

    def noisy(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.rand(5)
        torch.rand(3)
        return noise, (torch.dropout(x, 0.5, True).exp() * x).sum()

    found = []
    for call in (noisy, _compiled(noisy)):
        torch.manual_seed(0)
        x = torch.linspace(0.0, 2.0, 32, requires_grad=True)
        found.append(_second(call(x)[1], x))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_a_gradient_penalty_through_spectral_norm(norm: Any) -> None:
    """Each call takes a step of power iteration from where the last one stopped."""
    torch.manual_seed(0)
    start = nn.Sequential(norm(nn.Linear(4, 6)), nn.LeakyReLU(0.2), norm(nn.Linear(6, 1))).double()
    found = []
    for compiles in (False, True):
        torch.manual_seed(1)
        model = copy.deepcopy(start)
        judge = _compiled(model) if compiles else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            real, fake = torch.randn(2, 3, 4, dtype=torch.float64).unbind()
            between = real.lerp(fake, 0.3).requires_grad_()
            optimizer.zero_grad()
            (slope,) = torch.autograd.grad(judge(between).sum(), between, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            (judge(fake).mean() - judge(real).mean() + 10 * penalty).backward()
            optimizer.step()
        found.append([value.detach() for value in model.state_dict().values()])
    torch.testing.assert_close(found[1], found[0])


def test_a_buffer_that_moves_on() -> None:
    """What it held in a call is kept for that call."""

    def function(p: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        result = ((p - mean) ** 3).sum()
        with torch.no_grad():
            mean.lerp_(p, 0.5)
        return result

    found = []
    for call in (function, _compiled(function)):
        p, mean = torch.arange(3.0, requires_grad=True), torch.ones(3)
        losses = [call(p, mean) for _ in range(3)]
        found.append([value for loss in losses for value in _second(loss, p)])
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("needs", [False, True])
def test_an_input_whose_need_of_gradients_changes(needs: bool) -> None:
    """Frozen behind the call, it gets none; thawed, it gets one."""

    def function(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return (p * p * q * q).sum()

    found = []
    for call in (function, _compiled(function)):
        p, q = torch.full((3,), 2.0, requires_grad=True), torch.ones(3, requires_grad=not needs)
        loss = call(p, q)
        q.requires_grad_(needs)
        (slope,) = torch.autograd.grad(loss, p, create_graph=True)
        slope.square().sum().backward()
        found.append([slope.detach(), p.grad, q.grad])
    assert (found[0][2] is not None) == (found[1][2] is not None) == needs
    torch.testing.assert_close(found[1][: 2 + needs], found[0][: 2 + needs])


def test_a_write_that_two_results_are_behind() -> None:
    """The backward of one leaves the other its own."""
    torch.manual_seed(0)
    start, x, found = nn.Linear(3, 3), torch.ones(2, 3), []
    for compiles in (False, True):
        model = copy.deepcopy(start)

        def step(x: torch.Tensor, model: nn.Module = model) -> torch.Tensor:
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(0.5)
            kept: torch.Tensor = model(x.detach())
            model(x).sum().backward()
            return kept

        kept = (_compiled(step) if compiles else step)(x)
        kept.square().sum().backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(found[1], found[0])


def test_running_statistics_are_not_given_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gradient goes through them: a second derivative needs none of what they were. Every batch
    norm had two results more for it."""
    pairs: list[tuple[Any, Any]] = []

    def watched(graph: Any) -> Any:
        pairs.append((graph, keep_for_again(graph)))
        return pairs[-1][1]

    monkeypatch.setattr(pipeline, "keep_for_again", watched)
    torch.manual_seed(0)
    start = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Conv2d(4, 2, 1))
    x, found = torch.randn(3, 2, 5, 5), []
    for compiles in (False, True):
        model = copy.deepcopy(start)
        call = _compiled(model) if compiles else model
        values = []
        for _ in range(2):
            values += _second(call(x).square().mean(), model[0].weight)
        found.append([*values, model[1].running_mean, model[1].running_var])
    torch.testing.assert_close(found[1], found[0])
    assert pairs and all(before is after for before, after in pairs)
