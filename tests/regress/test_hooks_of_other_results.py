"""Hooks on the gradients of leaves that only some results of a compiled graph depend on: they were
called, with None or once too often, by the backward of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal

Hook = Callable[[torch.Tensor, list[Any]], Any]


def on_gradients(leaf: torch.Tensor, seen: list[Any]) -> Any:
    return leaf.register_hook(lambda gradient: seen.append(gradient.tolist()))


def halving(leaf: torch.Tensor, seen: list[Any]) -> Any:
    return leaf.register_hook(lambda gradient: gradient * 0.5)


def behind_accumulation(leaf: torch.Tensor, seen: list[Any]) -> Any:
    assert leaf.grad is None
    return leaf.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.tolist()))


def one_after_the_other(p: torch.Tensor, q: torch.Tensor) -> tuple[Any, ...]:
    first, second = (p * 2).sum(), (q.sin() * 3).sum()
    first.backward()
    second.backward()
    return ()


def one_shared(p: torch.Tensor, q: torch.Tensor) -> tuple[Any, ...]:
    first, second = (p * q).sum(), q.exp().sum()
    first.backward(retain_graph=True)
    second.backward()
    return (second,)


def one_cut_off(p: torch.Tensor, q: torch.Tensor) -> tuple[Any, ...]:
    loss = (p.detach() * q).sum()
    loss.backward()
    return (loss,)


def none_reached(p: torch.Tensor, q: torch.Tensor) -> tuple[Any, ...]:
    loss, other = q.exp().sum(), p.sin()
    return (*torch.autograd.grad(loss, [p, q], allow_unused=True), other)


def written_between(p: torch.Tensor, q: torch.Tensor) -> tuple[Any, ...]:
    first, second = (p * 2).sum(), (q.sin() * 3).sum()
    first.backward()
    with torch.no_grad():
        p.mul_(0.5)
    second.backward()
    return (p.detach().clone(),)


PROGRAMS = (one_after_the_other, one_shared, one_cut_off, none_reached, written_between)


def outcome(program: Callable[..., Any], hook: Hook) -> Any:
    p, q = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    seen: list[Any] = []
    hook(p, seen)
    results = [program(p, q) for _ in range(2)]
    return results, p.grad, q.grad, seen, p.detach(), p._version


@pytest.mark.parametrize("hook", [on_gradients, halving, behind_accumulation])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_a_hook_is_called_for_gradients_alone(
    backend: str, program: Callable[..., Any], hook: Hook, journal: Journal
) -> None:
    expected = outcome(program, hook)
    found = outcome(braze.compile(program, backend=backend), hook)
    torch.testing.assert_close(found, expected)
    assert not journal.fallbacks()


@pytest.mark.parametrize("hook", [on_gradients, halving, behind_accumulation])
def test_a_hook_that_is_registered_before_the_backward(hook: Hook) -> None:
    def results(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (p * 2).sum(), (q.sin() * p).sum()

    found = []
    for function in (results, braze.compile(results, backend="aot_eager")):
        p, q = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
        seen: list[Any] = []
        first, second = function(p, q)
        hook(q, seen)
        first.backward()
        assert not seen
        second.backward()
        found.append((p.grad, q.grad, seen))
    torch.testing.assert_close(found[1], found[0])


def test_a_hook_leaves_the_graph_compiled(journal: Journal) -> None:
    def program(p: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (p * q).exp(), (p - q).sin(), p * 2

    p, q = (torch.ones(2, requires_grad=True) for _ in range(2))
    compiled = braze.compile(program, backend="aot_eager")
    for hooked in (p, q):
        handle = hooked.register_hook(lambda gradient: gradient * 2)
        sum(r.sum() for r in compiled(p, q)).backward()
        handle.remove()
    torch.testing.assert_close(p.grad, 3 * (torch.e + 1 + 2) * torch.ones(2))
    torch.testing.assert_close(q.grad, 3 * (torch.e - 1) * torch.ones(2))
    assert [record.outcome for record in journal.records()] == ["graph", "backward"]
