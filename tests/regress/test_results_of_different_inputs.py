"""Results of one compiled graph that depend on different inputs: the backward of one leaves alone
the histories of inputs that it does not depend on, and one of several is one run of the graph's."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.trace import Journal


class Counted(torch.autograd.Function):
    """The identity; its backward is counted, and may be called once."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seen: list[str], name: str) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.seen, ctx.name = seen, name
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.saved_tensors  # noqa: B018  raises where it was freed
        ctx.seen.append(ctx.name)
        return gradient, None, None


def heads(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    trunk = (a * w).tanh()
    return trunk.sin(), (trunk * b).exp(), w.square(), b.detach() * 2


def one_by_one(results: Any, leaves: Any) -> Any:
    for number in (2, 0):
        results[number].sum().backward(retain_graph=True)
    results[1].sum().backward()


def all_at_once(results: Any, leaves: Any) -> Any:
    (results[0].sum() + results[1].prod() + results[2].mean()).backward()


def one_alone(results: Any, leaves: Any) -> Any:
    results[0].sum().backward()


def of_one_leaf(results: Any, leaves: Any) -> Any:
    return torch.autograd.grad(results[1].sum(), leaves[1])


def twice(results: Any, leaves: Any) -> Any:
    loss = results[0].sum() + results[1].sum()
    found = torch.autograd.grad(loss, leaves, create_graph=True)
    sum(g.square().sum() for g in found).backward()


def written_to(results: Any, leaves: Any) -> Any:
    results[0].mul_(3)
    results[0].sum().backward()


def batches(results: Any, leaves: Any) -> Any:
    tangents = torch.eye(2)
    return torch.autograd.grad(results[1], leaves, tangents, is_grads_batched=True)


def used_up(results: Any, leaves: Any) -> Any:
    results[1].sum().backward()
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        results[1].sum().backward()


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    "use",
    [one_by_one, all_at_once, one_alone, of_one_leaf, twice, written_to, batches, used_up],
)
def test_gradients_and_histories(backend: str, use: Callable[..., Any], journal: Journal) -> None:
    outcomes = []
    for function in (heads, braze.compile(heads, backend=backend)):
        leaves = [torch.tensor([0.5, 0.25 * n], requires_grad=True) for n in (1, 2, 3)]
        seen: list[str] = []
        inputs = [Counted.apply(x, seen, name) for x, name in zip(leaves, "abw", strict=True)]
        results = function(*inputs)
        told = [(r.requires_grad, r.is_leaf, r._version, r._is_view()) for r in results]
        found = use(results, leaves)
        outcomes.append(((found, [x.grad for x in leaves]), (sorted(seen), told)))
    torch.testing.assert_close(outcomes[1][0], outcomes[0][0])
    assert outcomes[1][1] == outcomes[0][1]
    assert not journal.fallbacks()


def test_one_backward_is_run_for_several_results(journal: Journal) -> None:
    compiled = braze.compile(heads, backend="aot_eager")
    a, b, w = (torch.rand(2, requires_grad=True) for _ in range(3))
    for _ in range(2):
        sum(result.sum() for result in compiled(a, b, w)).backward()
    backwards = [r for r in journal.records() if r.outcome == "backward"]
    assert len(backwards) == 1


def note(seen: list[int], number: int, gradient: torch.Tensor) -> None:
    seen.append(number)


def test_many_results() -> None:
    """More than a few, each of its own inputs and of all before."""

    def every_layer(x: torch.Tensor, layers: nn.ModuleList) -> list[torch.Tensor]:
        found = []
        for layer in layers:
            x = layer(x).tanh()
            found.append(x)
        return found

    x = torch.rand(2, 3)
    outcomes = []
    for function in (every_layer, braze.compile(every_layer, backend="aot_eager")):
        torch.manual_seed(0)
        layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(11))
        seen: list[int] = []
        for number, layer in enumerate(layers):
            layer.weight.register_hook(functools.partial(note, seen, number))
        results = function(x, layers)
        results[4].sum().backward(retain_graph=True)
        results[10].sum().backward()
        outcomes.append((sorted(seen), [p.grad for p in layers.parameters()]))
    torch.testing.assert_close(outcomes[1], outcomes[0])


def test_what_is_saved_goes_with_the_last_backward_that_needs_it() -> None:
    alive: list[Any] = []

    def pack(x: torch.Tensor) -> Any:
        alive.append(weakref.ref(x))
        return x

    compiled = braze.compile(heads, backend="aot_eager")
    leaves = [torch.rand(2, requires_grad=True) for _ in range(3)]
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        results = compiled(*leaves)
    kept = {id(x) for x in (*leaves, *results)}
    made = [r for r in alive if r() is not None and id(r()) not in kept]
    assert made
    (results[0].sum() + results[1].sum() + results[2].sum()).backward()
    assert all(r() is None or id(r()) in kept for r in made)
