"""A detached view that a frame returns carries no gradient, though what it views does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views of an input and of a result, detached and not."""
    doubled = x * 2
    return x.detach(), doubled, doubled.detach(), doubled[0], x[0]


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "aot_eager_decomp_partition", "eager"])
def test_detached_views(backend: str) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    expected = views(x)
    found = braze.compile(views, backend=backend)(x)
    for a, b in zip(expected, found, strict=True):
        assert (b.requires_grad, b.is_leaf) == (a.requires_grad, a.is_leaf)
        torch.testing.assert_close(b, a)
    assert found[0].data_ptr() == x.data_ptr() and found[2].data_ptr() == found[1].data_ptr()


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    "program", [lambda x: x.detach(), lambda x: (x.t().detach(), x.sum() > 0), lambda x: x.data[0]]
)
def test_only_detached_views(program: Any, gradients: bool, backend: str) -> None:
    """No result of the graph carries a gradient, so it has no backward."""
    x = torch.randn(3, 4, requires_grad=True)
    with torch.set_grad_enabled(gradients):
        expected, found = program(x), braze.compile(program, backend=backend)(x)
    pairs = zip(expected, found) if isinstance(expected, tuple) else [(expected, found)]
    for a, b in pairs:
        assert (b.requires_grad, b.is_leaf, b.stride()) == (False, True, a.stride())
        assert torch.equal(a, b)
    assert isinstance(found, tuple) or found.data_ptr() == x.data_ptr()


@pytest.mark.parametrize("backend", ["aot_eager", "eager"])
def test_autograd_forgets_views_of_a_leaf_that_is_a_view(backend: str) -> None:
    """A write that it does not see makes it look for their history where there is none."""

    def program(leaf: torch.Tensor) -> torch.Tensor:
        view = leaf.select(1, 0)
        view.detach().mul_(2)
        return view

    gradients = []
    for function in (program, braze.compile(program, backend=backend)):
        for leaf in (torch.ones(3, 4)[:, :3].requires_grad_(), torch.ones(3, 3).requires_grad_()):
            function(leaf).sum().backward()
            gradients.append(None if leaf.grad is None else leaf.grad.tolist())
    assert gradients[:2] == gradients[2:]
    assert gradients[0] is None and gradients[1] is not None


def _a_detached_slice(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (w.square().narrow(1, 1, 1).detach(),)


def _data_of_a_view(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (w.square().t().data,)


def _a_detached_input(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return w.detach(), w[0].detach()


def _a_detached_result(w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    square = w.square()
    return square, square.detach(), square[0].detach()


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    "program", [_a_detached_slice, _data_of_a_view, _a_detached_input, _a_detached_result]
)
def test_what_is_detached_is_no_view(
    program: Callable[..., Any], gradients: bool, enabled: bool, backend: str
) -> None:
    """It may be detached in place, with and without gradients."""
    w = torch.ones(2, 3, requires_grad=gradients)
    with torch.set_grad_enabled(enabled):
        expected, found = program(w), braze.compile(program, backend=backend)(w)
    for left, right in zip(expected, found, strict=True):
        assert right._is_view() == left._is_view() and torch.equal(right, left)
        assert right.untyped_storage().nbytes() == left.untyped_storage().nbytes()
        if not left.requires_grad:
            right.detach_()
