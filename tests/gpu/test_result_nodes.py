"""Results of one graph that depend on different inputs, on a device: the engine's nodes are taken
by the device's thread, on the stream of the forward, recorded or not."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.trace import Journal
from tests.gpu.checks import MODES, NEEDS_DEVICE, RECORDING, no_fallbacks

pytestmark = NEEDS_DEVICE

# The results of a model -> its losses, each to be differentiated by itself.
Losses = Callable[[Any], list[torch.Tensor]]


class _Heads(nn.Module):
    """A trunk, two heads of different depth, and a penalty that needs no input."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64))
        self.first = nn.Linear(64, 8)
        self.second = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        trunk = self.trunk(x)
        penalty = self.first.weight.exp().mean(dim=0)
        return self.first(trunk), self.second(trunk.detach()).sigmoid(), penalty


def _one(results: Any) -> list[torch.Tensor]:
    first, second, penalty = results
    return [first.square().mean() + second.mean() + penalty.sum()]


def _each(results: Any) -> list[torch.Tensor]:
    return [result.square().mean() for result in results]


def _the_second_alone(results: Any) -> list[torch.Tensor]:
    return [results[1].square().mean()]


def _inputs(count: int) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(16, 32, device="cuda", requires_grad=True) for _ in range(count)]


def _steps(call: Any, model: nn.Module, inputs: list[torch.Tensor], losses: Losses) -> list[Any]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[Any] = []
    for x in inputs:
        x.grad = None
        optimizer.zero_grad()
        for loss in losses(call(x)):
            loss.backward()
            found.append(loss.detach())
        found.append(None if x.grad is None else x.grad.clone())
        x.grad = None
        found += [None if p.grad is None else p.grad.clone() for p in model.parameters()]
        optimizer.step()
    return found


def _agree(found: list[Any], right: list[Any]) -> None:
    assert [x is None for x in found] == [x is None for x in right]
    for mine, theirs in zip(found, right, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine, theirs, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("losses", [_one, _each, _the_second_alone])
def test_steps(losses: Losses, mode: str | None, journal: Journal) -> None:
    torch.manual_seed(0)
    model = _Heads().cuda()
    other = copy.deepcopy(model)
    with no_fallbacks(journal):
        found = _steps(braze.compile(model, mode=mode), model, _inputs(8), losses)
    _agree(found, _steps(other, other, _inputs(8), losses))


@pytest.mark.parametrize("mode", MODES)
def test_pending_backwards_and_other_streams(mode: str | None) -> None:
    """Several forwards wait; their losses are differentiated in another order, and the forwards
    were on a stream of their own."""
    torch.manual_seed(0)
    model = _Heads().cuda()
    other = copy.deepcopy(model)

    def run(call: Any, of: nn.Module) -> list[Any]:
        found: list[Any] = []
        side = torch.cuda.Stream()
        for start in range(0, 9, 3):
            inputs = _inputs(9)[start : start + 3]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                losses = [_each(call(x)) for x in inputs]
            torch.cuda.current_stream().wait_stream(side)
            for several in reversed(losses):
                for loss in several[::-1]:
                    loss.backward()
            found += [x.grad for x in inputs]
            found += [p.grad.clone() for p in of.parameters() if p.grad is not None]
        return found

    _agree(run(braze.compile(model, mode=mode), model), run(other, other))


def _note(seen: list[int], number: int, gradient: torch.Tensor) -> None:
    seen.append(number)


@pytest.mark.parametrize("mode", MODES)
def test_histories_of_other_results_are_left_alone(mode: str | None) -> None:
    """Hooks behind the graph are called for what the backward is of, and nothing else."""

    def program(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (a * 2).sin().cumsum(0), (b * 3).cos().cumsum(0)

    compiled = braze.compile(program, mode=mode)
    for _ in range(6):
        leaves = [torch.randn(64, device="cuda", requires_grad=True) for _ in range(2)]
        seen: list[int] = []
        inputs = [leaf.exp() for leaf in leaves]
        for number, value in enumerate(inputs):
            value.register_hook(functools.partial(_note, seen, number))
        first, second = compiled(*inputs)
        first.sum().backward()
        assert (seen, leaves[1].grad) == ([0], None)
        second.sum().backward()
        assert seen == [0, 1]
        again = [leaf.detach().requires_grad_() for leaf in leaves]
        for result in program(*[leaf.exp() for leaf in again]):
            result.sum().backward()
        for leaf, right in zip(leaves, again, strict=True):
            torch.testing.assert_close(leaf.grad, right.grad, rtol=1e-4, atol=1e-5)


def test_a_backward_through_several_results_runs_the_graph_s_once(journal: Journal) -> None:
    model = _Heads().cuda()
    compiled = braze.compile(model, mode=RECORDING)
    for x in _inputs(4):
        _one(compiled(x))[0].backward()
    assert len([r for r in journal.records() if r.outcome == "backward"]) == 1


def test_a_number_on_the_host_leaves_inputs_apart() -> None:
    """A scale that the host computes, in a 0-dim tensor: no hook is called of a leaf that the loss
    does not depend on."""
    a, b = _inputs(2)
    seen: list[Any] = []
    b.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad))
    scale = torch.tensor(0.5)

    @functools.partial(braze.compile, options={"suppress_errors": False})
    def step(a: Any, b: Any, scale: Any) -> Any:
        return (a * scale).sum(), b.exp().mean(), scale + 1

    for _ in range(3):
        first, second, _ = step(a, b, scale)
        first.backward()
        assert seen == []
        second.backward()
        assert len(seen) == 1 and seen.pop() is b.grad
        torch.testing.assert_close(a.grad, torch.full_like(a, 0.5))
        a.grad = b.grad = None
