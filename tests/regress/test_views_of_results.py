"""A view of a value that the graph computed, with gradients, is a view where it leaves the graph,
even where what it views leaves with nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

_WEIGHT = torch.arange(1.0, 7.0).view(2, 3)


def _slice(w: torch.Tensor) -> torch.Tensor:
    return w.square().narrow(1, 1, 1)


def _whole(w: torch.Tensor) -> torch.Tensor:
    return w.square().view(3, 2)


def _of_a_view(w: torch.Tensor) -> torch.Tensor:
    return w.square().view(6).narrow(0, 1, 4).view(2, 2).t()


def _made_without_gradients(w: torch.Tensor) -> torch.Tensor:
    square = w.square()
    with torch.no_grad():
        return square[0]


def _piece(w: torch.Tensor) -> torch.Tensor:
    return w.square().unbind()[1]


def _real_part(w: torch.Tensor) -> torch.Tensor:
    return torch.complex(w, w.square()).real


def _no_view(w: torch.Tensor) -> torch.Tensor:
    return w.square().narrow(1, 1, 1) + 1


def _asked(view: torch.Tensor) -> Any:
    base = view._base
    return view._is_view(), None if base is None else (base.shape, base.requires_grad)


def _detach(view: torch.Tensor) -> Any:
    view.detach_()
    return view.requires_grad, view.is_leaf


def _write(view: torch.Tensor) -> Any:
    view.mul_(3)
    return None if view._base is None else view._base.detach().clone()


def _begin_gradients(view: torch.Tensor) -> Any:
    view.requires_grad_()
    return view.is_leaf


_VIEWS = (
    *(_slice, _whole, _of_a_view, _made_without_gradients),
    *(_piece, _real_part, _no_view),
)


def _outcome(program: Callable[[torch.Tensor], Any]) -> Any:
    weight = _WEIGHT.clone().requires_grad_()
    try:
        view, found = program(weight)
    except RuntimeError as problem:
        return str(problem)[-80:]  # it begins with the operator's name
    if view.requires_grad and view.grad_fn is not None:
        view.exp().sum().backward()
    return found, view.detach(), view.stride(), view.storage_offset(), view._version, weight.grad


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze"])
@pytest.mark.parametrize("use", [_asked, _detach, _write, _begin_gradients])
@pytest.mark.parametrize("make", _VIEWS)
def test_views(make: Callable[..., Any], use: Callable[..., Any], backend: str) -> None:
    """Used behind a break, and by the caller."""

    def behind_a_break(w: torch.Tensor) -> Any:
        view = make(w)
        print(end="")
        return view, use(view)

    def by_the_caller(w: torch.Tensor) -> Any:
        view = compiled(w)
        return view, use(view)

    compiled = braze.compile(make, backend=backend)
    broken = braze.compile(behind_a_break, backend=backend)
    expected = _outcome(behind_a_break)
    for program in (broken, by_the_caller):
        found = _outcome(program)
        if isinstance(expected, str):
            assert found == expected
        else:
            torch.testing.assert_close(found, expected)
