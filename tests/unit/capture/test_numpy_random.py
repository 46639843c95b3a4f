"""`numpy.random` in compiled code draws at each call what NumPy would, in order, in one graph."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import braze
from braze.compat.numpy.interface import RANDOM_METHODS

X = torch.arange(3.0)
ONES = np.ones(2)
OWN = np.random.RandomState(3)
_ARGUMENTS: tuple[tuple[Any, ...], ...] = (
    *((), (3,), (0.5,), (2.0, 3.0), (5, 0.5), (1.0, 2.0, 3.0), (7, 5, 4)),
    *((4, (0.25, 0.75)), ((0.5, 0.5),), ((0.0, 0.0), ((1.0, 0.0), (0.0, 1.0)))),
)


class Graphs:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.count += 1
        return graph.forward


def _state() -> tuple[Any, ...]:
    return (*np.random.get_state()[1:], *OWN.get_state()[1:], random.random())


def _agrees(function: Callable[..., Any], *args: Any) -> None:
    """Three calls with other states: results, and the states behind them, of eager; one graph."""
    graphs = Graphs()
    compiled = braze.compile(function, backend=graphs, fullgraph=True)
    found: list[list[Any]] = [[], []]
    for calls, results in zip((function, compiled), found):
        for seed in range(3):
            np.random.seed(seed), OWN.seed(seed), random.seed(seed)
            results.append((calls(*args), _state()))
    for (ours, after), (theirs, then) in zip(*found):
        assert type(ours) is type(theirs)
        np.testing.assert_array_equal(ours, theirs)
        assert getattr(ours, "dtype", None) == getattr(theirs, "dtype", None)
        for left, right in zip(after, then):
            np.testing.assert_array_equal(left, right)
    assert graphs.count == 1


def _usual(name: str) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments that a method takes, and gives an array for."""
    found: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    for args in _ARGUMENTS:
        for named in ({"size": 4}, {}):
            try:
                example = getattr(np.random.RandomState(0), name)(*args, **named)
            except (TypeError, ValueError, IndexError):
                continue
            if isinstance(example, np.ndarray):
                found.append((args, named))
                break
    return found[:2]


@pytest.mark.parametrize("name", sorted(RANDOM_METHODS))
def test_each_method_draws_as_numpy_does(name: str) -> None:
    usual = _usual(name)
    assert usual
    for args, named in usual:
        _agrees(_drawing(getattr(np.random, name, None) or getattr(OWN, name), args, named), ONES)


def _drawing(draw: Any, args: tuple[Any, ...], named: dict[str, Any]) -> Callable[..., Any]:
    return lambda x: x.sum() * draw(*args, **named)


def _several(x: torch.Tensor) -> torch.Tensor:
    first = torch.from_numpy(np.random.rand(3))
    return x * np.random.uniform(1, 2) + first * random.random() + np.random.randint(0, 5)


def _seeded(x: torch.Tensor) -> torch.Tensor:
    before = np.random.rand(3)
    np.random.seed(4)
    return x + torch.from_numpy(before + np.random.normal(size=(3,)))


def _of_ones_own(x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(OWN.randint(0, 9, size=x.shape)) + OWN.rand()


def _permuted(x: torch.Tensor) -> torch.Tensor:
    return x[torch.from_numpy(np.random.permutation(3))]


@pytest.mark.parametrize("program", [_several, _seeded, _of_ones_own, _permuted])
def test_programs_draw_in_order(program: Callable[..., Any]) -> None:
    _agrees(program, X)


def test_kernels_get_what_is_drawn() -> None:
    compiled = braze.compile(_several, fullgraph=True)
    for seed in range(3):
        np.random.seed(seed), random.seed(seed)
        expected = _several(X)
        np.random.seed(seed), random.seed(seed)
        torch.testing.assert_close(compiled(X), expected)


def _made_here(x: torch.Tensor) -> torch.Tensor:
    return x + torch.from_numpy(np.random.RandomState(1).rand(3))


def _shuffled(x: torch.Tensor) -> torch.Tensor:
    order = [2, 0, 1]
    np.random.shuffle(order)
    return x[order]


def _refused(x: torch.Tensor) -> Any:
    return x + np.random.randint(5, 2)


@pytest.mark.parametrize("program", [_made_here, _shuffled])
def test_what_is_not_drawn_breaks(program: Callable[..., Any]) -> None:
    with pytest.raises(braze.exc.GraphBreakError):
        braze.compile(program, backend="eager", fullgraph=True)(X)
    np.random.seed(0)
    expected = program(X)
    np.random.seed(0)
    assert torch.equal(braze.compile(program, backend="eager")(X), expected)


def test_arguments_that_numpy_refuses() -> None:
    with pytest.raises(ValueError, match="low >= high"):
        braze.compile(_refused, backend="eager")(X)
