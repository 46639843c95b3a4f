"""A list that is filled in the frame and looped over: behind a break the loop begins where it was,
not at the beginning."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

Program = Callable[[torch.Tensor, Any], Any]


def spliced(x: torch.Tensor, items: list[Any]) -> None:
    items[:0] = x
    for item in items:
        item += 1
        braze.graph_break()


def zipped(x: torch.Tensor, items: list[Any]) -> Any:
    items.extend(x)
    found = []
    for number, (item, _) in enumerate(zip(items, "abc")):
        item += number
        braze.graph_break()
        found.append(number)
    return found


def backwards(x: torch.Tensor, items: list[Any]) -> Any:
    items += [x[0], x[1], x[2]]
    iterator = reversed(items)
    last = next(iterator)
    braze.graph_break()
    return last, next(iterator), list(iterator)


def kept(x: torch.Tensor, items: list[Any]) -> Any:
    items.extend([1, 2, 3])
    iterators = [iter(items), iter(items)]
    first = next(iterators[0])
    braze.graph_break()
    return x + first, list(iterators[0]), list(iterators[1])


@pytest.mark.parametrize("program", [spliced, zipped, backwards, kept])
@pytest.mark.parametrize("held", [0, 1])
def test_a_list_that_is_filled_and_looped_over(program: Program, held: int) -> None:
    compiled = braze.compile(program, backend="aot_eager")
    for _ in range(2):
        outcomes = []
        for function in (program, compiled):
            x, items = torch.arange(3.0), [torch.ones(()) for _ in range(held)]
            outcomes.append((function(x, items), x, items))
        torch.testing.assert_close(*outcomes, rtol=0, atol=0)


def counted(x: torch.Tensor, items: Any, fill: Callable[[Any], None]) -> Any:
    fill(items)
    found = []
    for place, item in enumerate(items):
        found.append(x + place * item)
        braze.graph_break()
    return found


def walked(x: torch.Tensor, items: Any, fill: Callable[[Any], None]) -> Any:
    fill(items)
    found = []
    for item in items:
        found.append(x + item)
        braze.graph_break()
    return found


def with_values(x: torch.Tensor, items: Any, fill: Callable[[Any], None]) -> Any:
    fill(items)
    found = []
    values = items.values() if isinstance(items, dict) else items
    for item, value in zip(items, values):
        found.append(x + item - 2 * value)
        braze.graph_break()
    return found


@pytest.mark.parametrize("walk", [counted, walked, with_values])
@pytest.mark.parametrize("kind", [deque, dict, OrderedDict, set, list])
def test_a_container_that_is_filled_and_looped_over(
    kind: type, walk: Callable[[torch.Tensor, Any, Callable[[Any], None]], Any]
) -> None:
    """Its iterator notices changes: it was made before them, or had come to an end."""

    def fill(items: Any) -> None:
        if isinstance(items, dict):
            items.update({1: 2, 3: 4, 5: 6})
        else:
            (items.update if isinstance(items, set) else items.extend)([1, 3, 5])

    compiled = braze.compile(walk, backend="aot_eager")
    right, items = walk(torch.zeros(1), filled := kind(), fill), kind()
    torch.testing.assert_close(compiled(torch.zeros(1), items, fill), right, rtol=0, atol=0)
    assert items == filled
