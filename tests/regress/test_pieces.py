"""Several views that one call made: autograd refuses to write to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal


def _state(function: Callable[..., Any], *tensors: torch.Tensor) -> Any:
    try:
        result = function(*tensors)
    except RuntimeError as problem:
        result = str(problem).partition(".")[0]
    return result, [(x._version, x.tolist()) for x in tensors]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_write_through_data_behind_a_break_is_not_counted(backend: str) -> None:
    def program(x: torch.Tensor, z: torch.Tensor) -> int:
        for kept in enumerate(x):  # noqa: B007
            data = z.data
        x -= 0
        braze.graph_break()
        data.mul_(0.5)
        return kept[0]

    compiled = braze.compile(program, backend=backend)
    expected = _state(program, torch.ones(3), torch.ones((), requires_grad=True))
    assert _state(compiled, torch.ones(3), torch.ones((), requires_grad=True)) == expected


def test_the_history_of_a_view_that_autograd_refuses() -> None:
    def program(x: torch.Tensor, p: torch.Tensor) -> Any:
        for piece in x:
            x *= p
            return piece.grad_fn
        return None

    compiled = braze.compile(program, backend="aot_eager")
    with torch.no_grad():
        x, y = torch.ones(3), torch.ones(3)
    weight = torch.ones(3, requires_grad=True)
    assert _state(compiled, x, weight) == _state(program, y, weight)


def test_a_write_to_one_of_several_views_is_refused_behind_a_break(journal: Journal) -> None:
    def program(p: torch.Tensor) -> bool:
        piece = (p * 2).unbind()[1]
        braze.graph_break()
        try:
            piece.add_(1)
        except RuntimeError as problem:
            return "multiple views" in str(problem)
        return False

    compiled = braze.compile(program, backend="aot_eager")
    weight = torch.ones(3, requires_grad=True)
    assert compiled(weight) and program(weight)
    assert not journal.fallbacks()
