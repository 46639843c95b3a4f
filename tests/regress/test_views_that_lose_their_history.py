"""A view of a leaf that was itself a view, written to past autograd: eager looks for its history at
the base, which has none, and its gradient is lost. Where such a view came into a graph from outside
(behind a break), its gradient was added."""

from __future__ import annotations

import pytest
import torch

import braze


def _overwrite(view: torch.Tensor, how: str) -> None:
    if how == "detached":
        view.detach().mul_(2)
    elif how == "data":
        view.data.mul_(2)
    else:
        with torch.no_grad():
            view.mul_(2)


@pytest.mark.parametrize("how", ["detached", "data", "no_grad"])
@pytest.mark.parametrize("of", ["a leaf", "a leaf that is a view", "what is computed"])
@pytest.mark.parametrize("inside", [False, True])
def test_gradient_of_an_overwritten_view(how: str, of: str, inside: bool) -> None:
    def step(whole: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
        view = whole[1:] if inside else given
        _overwrite(view, how)
        return (view * view).sum() + whole.sum()

    compiled = braze.compile(step, backend="aot_eager", options={"suppress_errors": False})
    found = []
    for function in (step, compiled, compiled):
        leaf = torch.arange(1.0, 4.0)
        if of == "a leaf that is a view":
            leaf = leaf.view(3)
        leaf.requires_grad_()
        whole = leaf * 2 if of == "what is computed" else leaf
        (function(whole, whole[1:])).backward()
        found.append((leaf.detach(), leaf.grad))
    for values, gradient in found[1:]:
        torch.testing.assert_close(values, found[0][0], rtol=0, atol=0)
        torch.testing.assert_close(gradient, found[0][1])


def test_one_graph_for_several_kinds_of_views() -> None:
    """What was compiled for a view that keeps its history is not called for one that loses it."""

    def step(view: torch.Tensor) -> torch.Tensor:
        view.detach().mul_(2)
        return (view * 3).sum()

    compiled = braze.compile(step, backend="aot_eager", options={"suppress_errors": False})
    for function in (step, compiled):
        gradients = []
        for is_view in (False, True, False):
            leaf = torch.arange(1.0, 4.0)
            leaf = (leaf.view(3) if is_view else leaf).requires_grad_()
            function(leaf[1:]).backward()
            gradients.append(leaf.grad)
        assert [None if g is None else g.tolist() for g in gradients] == [
            [0.0, 3.0, 3.0],
            None,
            [0.0, 3.0, 3.0],
        ]
