"""A history that an inner `torch.autograd.grad` or `backward` has used up, used once more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from tests.unit.capture.test_backward import breaks_of

grad = torch.autograd.grad

# What a program computes of x and w, in two steps; the inner one is named in INNER.
FIRST: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "saves": lambda x, w: (x * w).sin(),
    "saves nothing": lambda x, w: x + w,
    "scaled": lambda x, w: x * 2,
    "view": lambda x, w: (x * w).sin().view(1, 2),
    "of one": lambda x, w: x.exp() + w,
    "product": lambda x, w: torch.outer(x, w).tanh(),
}
SECOND: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "itself": lambda h, w: h.sum(),
    "weighted": lambda h, w: (h * w[0]).sum(),
    "squared": lambda h, w: (h * h).mean(),
    "shifted": lambda h, w: h.sum() + 1,
}
INNER: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "grad x": lambda y, h, x, w: grad(y, x, allow_unused=True),
    "grad w": lambda y, h, x, w: grad(y, w, allow_unused=True),
    "grad both": lambda y, h, x, w: grad(y, (x, w), allow_unused=True),
    "grad h": lambda y, h, x, w: grad(y, h),
    "retained": lambda y, h, x, w: grad(y, x, retain_graph=True, allow_unused=True),
    "with a graph": lambda y, h, x, w: grad(y, x, create_graph=True, allow_unused=True),
    "backward": lambda y, h, x, w: y.backward(),
    "backward to x": lambda y, h, x, w: y.backward(inputs=[x]),
}
OUTER: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]] = {
    "y": lambda y, h, x, w: y.backward(),
    "h": lambda y, h, x, w: h.sum().backward(),
    "y to w": lambda y, h, x, w: grad(y, w, allow_unused=True),
    "h to x": lambda y, h, x, w: grad(h.sum(), x, allow_unused=True),
}

_ASKING = ("y to w", "h to x")


def _observed(compiled: Any, outer: str) -> list[Any]:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    w = torch.tensor([3.0, 0.5], requires_grad=True)
    found: list[Any] = []
    try:
        y, h = compiled(x, w)
        found.append(OUTER[outer](y, h, x, w))
    except RuntimeError as error:
        return [str(error)[:60]]  # what a backward accumulates before it raises is chance
    return [*found, x.grad, w.grad]


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("first", FIRST)
def test_second_use_is_refused_where_eager_refuses(first: str, inner: str) -> None:
    for second in SECOND:

        def f(x: Tensor, w: Tensor, second: str = second) -> Any:
            h = FIRST[first](x, w)
            y = SECOND[second](h, w)
            INNER[inner](y, h, x, w)
            return y, h

        compiled = braze.compile(f)
        for outer in OUTER:
            want, got = _observed(f, outer), _observed(compiled, outer)
            if first == "of one" and _raised(got) and not _raised(want):
                continue  # a compiled graph is one node: all that it saved goes at once
            if inner == "backward" and outer in _ASKING and got[0] == (None,):
                continue  # what a whole backward used up holds on to no leaf: see the test below
            assert repr(got) == repr(want), f"{second}, {outer}"


def _raised(found: list[Any]) -> bool:
    return len(found) == 1


def test_kept_losses_leave_later_steps_whole() -> None:
    """A loss keeps no leaf's node alive, which the next step would take for somebody's hooks."""

    def step(w: Tensor, x: Tensor) -> Tensor:
        loss = (w * x).sin().sum()
        loss.backward()
        return loss

    compiled = braze.compile(step)
    w, v = (torch.tensor([3.0, 0.5], requires_grad=True) for _ in range(2))
    kept = []
    for number in range(3):
        x = torch.full((2,), float(number))
        kept.append(compiled(w, x))
        assert torch.equal(kept[-1], step(v, x))
        assert w.grad is not None and v.grad is not None
        torch.testing.assert_close(w.grad, v.grad)
    assert breaks_of(compiled) == []
    for loss in kept:
        with pytest.raises(RuntimeError, match="a second time"):
            loss.backward()
        with pytest.raises(RuntimeError):
            grad(loss, w)
