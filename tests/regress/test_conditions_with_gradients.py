"""`torch.cond` that gradients flow through, as one graph: values, gradients and their gradients are
those of the branch that is taken, whatever comes back from the other one. The oracle is `if`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.trace import Journal

Branch = Callable[..., Any]
BACKENDS = ("eager", "aot_eager", "braze")

# What has no gradient, or an infinite one, at zero or below, where the branch that is taken has.
STEEP: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "log": torch.log,
    "reciprocal": torch.reciprocal,
    "acos": lambda x: torch.acos(x + 1),
    "pow": lambda x: x**0.3,
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "normalize": lambda x: x / x.std(-1, keepdim=True),
    "xlogy": lambda x: torch.xlogy(x, x),
    "atan2": lambda x: torch.atan2(x, x),
    "logsumexp": lambda x: torch.logsumexp(x / x, -1, keepdim=True).expand(x.shape),
    "cumprod": lambda x: torch.cumprod(1 / x, -1),
    "softmax": lambda x: torch.softmax(x / 0, -1),
    "prod": lambda x: (x.log() * x).prod(-1, keepdim=True).expand(x.shape),
}


def both(true_fn: Branch, false_fn: Branch) -> tuple[Branch, Branch]:
    """The same choice by torch.cond and by Python."""

    def conditional(x: torch.Tensor, flag: torch.Tensor) -> Any:
        return torch.cond(flag, true_fn, false_fn, (x,))

    def plain(x: torch.Tensor, flag: torch.Tensor) -> Any:
        return true_fn(x) if flag else false_fn(x)

    return conditional, plain


def gradients(function: Branch, x: torch.Tensor, flag: torch.Tensor) -> Any:
    """Values, gradients, and gradients of those."""
    x = x.clone().requires_grad_()
    made = function(x * 1, flag)
    (first,) = torch.autograd.grad((made * made + x * 0).sum(), x, create_graph=True)
    second = torch.zeros_like(x)
    if first.requires_grad:
        (second,) = torch.autograd.grad(first.sum(), x)
    return made.detach(), first.detach(), second


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", STEEP)
def test_other_branch_sends_back_no_nan(name: str, backend: str) -> None:
    steep = STEEP[name]
    for branches in ((steep, torch.sin), (torch.sin, steep)):
        conditional, plain = both(*branches)
        compiled = braze.compile(conditional, backend=backend, fullgraph=True)
        for x in (torch.tensor([[0.0, -1.0, 2.0]]), torch.zeros(2, 3)):
            for flag in (torch.tensor(True), torch.tensor(False)):
                found, expected = gradients(compiled, x, flag), gradients(plain, x, flag)
                torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_branches_close_over_tensors_and_modules(backend: str, journal: Journal) -> None:
    torch.manual_seed(0)
    model, other = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.GELU())
    weight = torch.randn(4, 4, requires_grad=True)

    def program(x: torch.Tensor, choose: Any) -> torch.Tensor:
        y = x * 2
        made: torch.Tensor = choose(
            x.sum() > 0, lambda: (model(y) @ weight).sqrt(), lambda: other(y) / weight[0] + x
        )
        return made.sum() * 3

    leaves = [weight, *model.parameters(), *other.parameters()]
    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for x in (torch.rand(3, 4), -torch.rand(3, 4), torch.rand(5, 4), torch.rand(7, 4)):
        grads = []
        for function, choose in (
            (compiled, torch.cond),
            (program, lambda p, f, g: f() if p else g()),
        ):
            x.requires_grad_().grad = None
            for leaf in leaves:
                leaf.grad = None
            made = function(x, choose)
            made.backward()
            grads.append((made.detach(), *(t.grad for t in (x, *leaves))))
        grads[1] = tuple(torch.zeros_like(a) if b is None else b for a, b in zip(*grads))
        torch.testing.assert_close(*grads, equal_nan=True)
    assert sum(record.outcome == "graph" for record in journal.records()) <= 4


def test_nested_in_training(journal: Journal) -> None:
    """As a model would: early exits, each trained."""

    class Exits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

        def forward(self, x: torch.Tensor, choose: Any) -> torch.Tensor:
            def rest(x: torch.Tensor) -> torch.Tensor:
                y = torch.tanh(self.layers[1](x))
                made: torch.Tensor = choose(
                    y.mean() > 0, lambda y: self.layers[2](y), lambda y: y.log1p() * 2, (y,)
                )
                return made

            x = torch.relu(self.layers[0](x))
            made: torch.Tensor = choose(x.mean() > 0.25, rest, lambda x: x.clone(), (x,))
            return made

    def train(compile: Any, choose: Any) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = Exits()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        call, seen = compile(model), []
        for step in range(6):
            loss = call(torch.randn(4, 8) * (step + 1) / 3, choose).square().mean()
            optimizer.zero_grad()
            loss.backward()
            for parameter in model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            seen.append(loss.detach())
        return [*seen, *(p.detach() for p in model.parameters())]

    expected = train(
        lambda model: model, lambda p, f, g, operands: f(*operands) if p else g(*operands)
    )
    found = train(lambda model: braze.compile(model, fullgraph=True), torch.cond)
    torch.testing.assert_close(found, expected)
    assert {record.outcome for record in journal.records()} == {"graph", "backward"}


class Scaled(torch.autograd.Function):
    """x * 3, with a gradient that is another."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * 5


@pytest.mark.parametrize(
    "branch",
    [
        Scaled.apply,
        lambda x: torch.stack([x[0], x[1].log()]),
        lambda x: torch.cat([x[:1], x[1:].sqrt()]),
        lambda x: torch.utils.checkpoint.checkpoint(torch.sqrt, x, use_reentrant=False),
        lambda x: x.T.sqrt().T,
        lambda x: sum(x.unbind(0)).sqrt() + x,
        lambda x: x.detach() + 1,
        lambda x: torch.einsum("ij,kj->ki", x, x)[:2, :1].sqrt() + x,
        lambda x: x.to(torch.float64).sqrt().to(x.dtype),
        lambda x: torch.where(x > 0, x, 0.0).sqrt(),
    ],
)
def test_calls_in_branches(branch: Branch) -> None:
    """What reaches a branch by another way than an argument breaks, and is never wrong."""
    for branches in ((branch, torch.sin), (torch.sin, branch)):
        conditional, plain = both(*branches)
        compiled = braze.compile(conditional)
        for x in (torch.tensor([[0.0, -1.0, 2.0], [0.0, 0.0, 1.0]]), torch.rand(2, 3)):
            for flag in (torch.tensor(True), torch.tensor(False)):
                found, expected = gradients(compiled, x, flag), gradients(plain, x, flag)
                torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x[:1],
        lambda x: x.double(),
        lambda x: (x, x),
        lambda x: {"x": x},
        lambda x: 3,
    ],
)
@pytest.mark.parametrize("fullgraph", [False, True])
def test_other_kinds_of_results_are_refused(other: Branch, fullgraph: bool) -> None:
    """By PyTorch's own exception."""
    conditional, _ = both(lambda x: x + 1, other)
    x, flag = torch.rand(3, 4), torch.tensor(True)
    with pytest.raises(Exception) as theirs:
        conditional(x, flag)
    with pytest.raises(type(theirs.value)):
        braze.compile(conditional, fullgraph=fullgraph)(x, flag)


KEPT: list[int] = []
OUTSIDE = torch.ones(3)


@pytest.mark.parametrize(
    "branch",
    [
        lambda x: x.add_(1),
        lambda x: (x.add_(1), x * 2)[1],
        lambda x: OUTSIDE.mul_(1) + x,
        lambda x: (KEPT.append(1), x + 1)[1],
        lambda x: x,
        lambda x: x.view(-1),
        lambda x: x.detach(),
        lambda x: x.contiguous(),
        lambda x: OUTSIDE,
    ],
)
@pytest.mark.parametrize("is_taken", [True, False])
def test_writes_and_aliases_are_refused(branch: Branch, is_taken: bool) -> None:
    """By PyTorch's own exception, whichever branch is taken; and nothing is written."""
    conditional, _ = both(branch, lambda x: x - 1)
    x, flag = torch.ones(3), torch.tensor(is_taken)
    with pytest.raises(RuntimeError) as refused:
        braze.compile(conditional)(x, flag)
    assert type(refused.value).__name__ == "UncapturedHigherOrderOpError"
    assert torch.equal(x, torch.ones(3)) and not KEPT


def test_results_of_one_memory_are_refused() -> None:
    def twice(x: torch.Tensor) -> Any:
        made = x + 1
        return made, made[:]

    conditional, _ = both(twice, lambda x: (x - 1, x - 2))
    with pytest.raises(RuntimeError, match="aliasing"):
        braze.compile(conditional, fullgraph=True)(torch.ones(3), torch.tensor(True))


def test_writes_to_new_tensors_are_in_the_graph() -> None:
    conditional, _ = both(lambda x: (x * 2).add_(1), lambda x: x - 1)
    made = braze.compile(conditional, fullgraph=True)(torch.ones(3), torch.tensor(True))
    assert torch.equal(made, torch.full((3,), 3.0))
