"""torch's operators that take functions are what they do in eager, in Python: loops of a fixed
length are unrolled into the graph, those on data break it at each turn, like `while`.

What is expected is written out, since eager compiles these operators by torch's own compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import braze

ROWS = torch.arange(12.0).reshape(4, 3)


def fixed_count(x: torch.Tensor) -> Any:
    return while_loop(lambda n, y: n < 3, lambda n, y: (n + 1, y * 2), (0, x + 1))


def sums_and_products(x: torch.Tensor) -> Any:
    return scan(lambda total, row: (total + row, total * row), torch.ones(3), x)


def each_row(x: torch.Tensor) -> Any:
    return map_rows(lambda row, weight: row * weight, x, torch.tensor([1.0, 2.0, 3.0]))


def running_sums(x: torch.Tensor) -> Any:
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


def _scanned(x: torch.Tensor) -> Any:
    before = torch.cat([torch.ones(1, 3), 1 + x.cumsum(0)])
    return before[-1], before[:-1] * x


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("program", "meaning"),
    [
        (fixed_count, lambda x: (3, (x + 1) * 8)),
        (sums_and_products, _scanned),
        (each_row, lambda x: x * torch.tensor([1.0, 2.0, 3.0])),
        (running_sums, lambda x: x.cumsum(0)),
    ],
)
def test_loops_of_fixed_length_are_one_graph(
    program: Callable[..., Any], meaning: Callable[..., Any], gradients: bool
) -> None:
    x, y = (ROWS.clone().requires_grad_(gradients) for _ in range(2))
    found, expected = braze.compile(program, fullgraph=True)(x), meaning(y)
    torch.testing.assert_close(found, expected)
    if gradients:
        for result in (found, expected):
            tensors = [result] if isinstance(result, torch.Tensor) else result
            sum((t * t).sum() for t in tensors if isinstance(t, torch.Tensor)).backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("limit", [1.0, 50.0, 3000.0])
def test_a_loop_on_data_goes_on_behind_breaks(limit: float) -> None:
    def doubled(x: torch.Tensor) -> Any:
        count, y = while_loop(
            lambda n, y: y.sum() < limit, lambda n, y: (n + 1, y * 2), (torch.tensor(0), x + 0.5)
        )
        return count + 1, y - 1

    explanation = braze.explain(doubled)(ROWS)
    count, y = torch.tensor(0), ROWS + 0.5
    while y.sum() < limit:
        count, y = count + 1, y * 2
    torch.testing.assert_close(explanation.result, (count + 1, y - 1))
    assert {note.code for note in explanation.break_reasons} == {"data-dependent-branch"}
    assert not explanation.fallbacks
