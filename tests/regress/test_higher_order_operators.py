"""torch's operators that take functions are what they do in eager, in Python: loops of a fixed
length are unrolled into the graph, those on data are loops in it.

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
from braze.compat.torch.versions import TORCH

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


def trees(x: torch.Tensor) -> Any:
    """Carries and results in trees, as the documentation of `scan` has them."""

    def step(carried: Any, row: Any) -> Any:
        carried = {"sum": carried["sum"] + row[0], "scale": carried["scale"] * 2}
        return carried, (row[0] * row[1], [carried["sum"] * carried["scale"]])

    start = {"sum": torch.zeros(3), "scale": torch.ones(1)}
    last, (products, (sums,)) = scan(step, start, (x, x + 1))
    return last["sum"], last["scale"], products, sums


def _of_trees(x: torch.Tensor) -> Any:
    scales = 2.0 ** torch.arange(1, 5)
    return x.sum(0), scales[-1:], x * (x + 1), x.cumsum(0) * scales[:, None]


def backwards(x: torch.Tensor) -> Any:
    return scan(lambda c, row: (c * 0.5 + row, c.clone()), torch.zeros(4), x, dim=1, reverse=True)


def _of_backwards(x: torch.Tensor) -> Any:
    carried, before = torch.zeros(4), []
    for column in reversed(x.unbind(1)):
        before.insert(0, carried)
        carried = carried * 0.5 + column
    # PyTorch 2.11 stacks what a scan gives along the first dimension, whichever it goes along.
    return carried, torch.stack(before, 0 if TORCH < (2, 12) else 1)


def chosen_in_rows(x: torch.Tensor) -> Any:
    def step(total: torch.Tensor, row: torch.Tensor) -> Any:
        chosen = torch.cond(row.sum() > 10, torch.sub, torch.add, (total, row))
        return chosen, chosen * row

    return scan(step, torch.ones(3), x)


def _of_chosen_in_rows(x: torch.Tensor) -> Any:
    total, made = torch.ones(3), []
    for row in x:
        total = total - row if row.sum() > 10 else total + row
        made.append(total * row)
    return total, torch.stack(made)


def rows_in_a_branch(x: torch.Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda x: sums_and_products(x)[1], lambda x: x.sqrt(), (x,))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(
    ("program", "meaning"),
    [
        (fixed_count, lambda x: (3, (x + 1) * 8)),
        (sums_and_products, _scanned),
        (each_row, lambda x: x * torch.tensor([1.0, 2.0, 3.0])),
        (running_sums, lambda x: x.cumsum(0)),
        (trees, _of_trees),
        (backwards, _of_backwards),
        (chosen_in_rows, _of_chosen_in_rows),
        (rows_in_a_branch, lambda x: _scanned(x)[1]),
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


def test_carries_that_change_are_refused() -> None:
    """By PyTorch's own exception."""

    def program(x: torch.Tensor) -> Any:
        return scan(lambda c, row: (c.double() + row, row * 2), torch.zeros(3), x)

    with pytest.raises(RuntimeError) as theirs:
        program(ROWS)
    with pytest.raises(type(theirs.value)):
        braze.compile(program, fullgraph=True)(ROWS)


@pytest.mark.parametrize("limit", [1.0, 50.0, 3000.0])
def test_a_loop_on_data_is_in_the_graph(limit: float) -> None:
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
    assert not explanation.break_reasons and explanation.graph_count == 1
    assert not explanation.fallbacks
