"""Hooks on the gradients of inputs that a compiled function registers, and leaves registered."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

import braze
from braze.errors import GraphBreakError


class Holder:
    """Keeps what the program registers."""

    def __init__(self) -> None:
        self.handles: list[RemovableHandle] = []


def double(gradient: Tensor) -> Tensor:
    return gradient * 2


def double_in_place(leaf: Tensor) -> None:
    assert leaf.grad is not None
    leaf.grad.mul_(2)


def keep_none(x: Tensor, holder: Holder) -> Any:
    x.register_hook(double)
    return x.sin()


def keep_some(x: Tensor, holder: Holder) -> Any:
    scale = x.detach().sum() + 1
    holder.handles += [x.register_hook(double), x.register_hook(lambda g: g * scale + x.detach())]
    return x.sin()


def remove_some(x: Tensor, holder: Holder) -> Any:
    first = x.register_hook(double)
    y = x.sin()
    first.remove()
    first.remove()
    second = x.register_hook(lambda g: g + 1)
    return y, first, second, second


def remove_with(x: Tensor, holder: Holder) -> Any:
    with x.register_hook(double) as handle:
        y = x.sin()
    return y, handle


def accumulated(x: Tensor, holder: Holder) -> Any:
    holder.handles.append(x.register_post_accumulate_grad_hook(double_in_place))
    return x.sin()


PROGRAMS = (keep_none, keep_some, remove_some, remove_with, accumulated)
OF_LEAVES = (accumulated,)


def outcome(function: Callable[..., Any], of_leaf: bool) -> list[Any]:
    """Gradients and handles of three calls, each followed by two backwards, the second without the
    hooks that can be removed."""
    found: list[Any] = []
    for _ in range(3):
        leaf, holder = torch.linspace(0, 1, 4).requires_grad_(), Holder()
        x = leaf if of_leaf else leaf * 3
        given = function(x, holder)
        first, *handles = given if type(given) is tuple else (given,)
        holder.handles += handles
        first.sum().backward(retain_graph=True)
        found.append(leaf.grad.clone())  # type: ignore[union-attr]
        found += [type(each) for each in holder.handles]
        found.append([a is b for a, b in itertools.pairwise(holder.handles)])
        for handle in holder.handles:
            handle.remove()
        first.sum().backward()
        found += [leaf.grad, len(x._backward_hooks or ())]
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("of_leaf", [True, False])
def test_hooks_of_inputs_are_one_graph(program: Any, of_leaf: bool, backend: str) -> None:
    if program in OF_LEAVES and not of_leaf:
        pytest.skip("the hook is of leaves")
    compiled = braze.compile(program, backend=backend, fullgraph=True)
    for actual, expected in zip(outcome(compiled, of_leaf), outcome(program, of_leaf), strict=True):
        torch.testing.assert_close(actual, expected) if isinstance(expected, Tensor) else None
        assert isinstance(expected, Tensor) or actual == expected


def with_backward(x: Tensor, holder: Holder) -> Any:
    holder.handles.append(x.register_hook(double))
    x.sin().sum().backward()
    return x.cos()


def with_backward_before(x: Tensor, holder: Holder) -> Any:
    x.sin().sum().backward()
    holder.handles.append(x.register_hook(double))
    return x.cos()


def with_write(x: Tensor, holder: Holder) -> Any:
    holder.handles.append(x.register_hook(double))
    with torch.no_grad():
        x.mul_(2)
    return x.cos()


def with_switch(x: Tensor, holder: Holder) -> Any:
    holder.handles.append(x.register_hook(double))
    x.requires_grad_(False)
    return x.cos() * torch.ones(4, requires_grad=True)


@pytest.mark.parametrize("program", [with_backward, with_backward_before, with_write, with_switch])
def test_hooks_that_would_come_late_break(program: Any) -> None:
    found = []
    for function in (program, braze.compile(program, backend="eager")):
        leaf, holder = torch.linspace(0, 1, 4).requires_grad_(), Holder()
        function(leaf, holder).sum().backward()
        found.append((leaf.detach(), leaf.grad, len(holder.handles)))
    torch.testing.assert_close(found[1], found[0])
    with pytest.raises(GraphBreakError):
        strict = braze.compile(program, backend="eager", fullgraph=True)
        strict(torch.ones(4, requires_grad=True), Holder())


def test_hook_of_a_tensor_without_gradients_raises() -> None:
    compiled = braze.compile(keep_none, backend="eager")
    for function in (keep_none, compiled):
        with pytest.raises(RuntimeError, match="doesn't require gradient"):
            function(torch.ones(3), Holder())
