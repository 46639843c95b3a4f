"""Control flow on data, as the guides of `torch.cond`, `scan` and `vmap` show it (D-61 to D-65)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch.func import grad, vmap

import braze
from braze.ir.graphs import region
from braze.trace import Journal
from tests.guides.graphs import in_one_graph

WEIGHT = torch.linspace(-1, 1, 8)


def branch(row: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = torch.cond(
        row.sum() > 0, lambda r: (r * WEIGHT).sin(), lambda r: r.cos() + r, (row,)
    )
    return made


def in_python(row: torch.Tensor) -> torch.Tensor:
    return (row * WEIGHT).sin() if row.sum() > 0 else row.cos() + row


@pytest.mark.parametrize(
    "around",
    [
        lambda f: lambda row: f(row),
        lambda f: grad(lambda row: f(row).square().sum()),
    ],
)
def test_branches_of_a_batch(around: Callable[..., Any]) -> None:
    """A row of a `vmap` takes its own branch."""
    x = torch.randn(6, 8)
    found = in_one_graph(lambda x: vmap(around(branch))(x), x)
    torch.testing.assert_close(found, torch.stack([around(in_python)(row) for row in x]))


def test_branches_of_a_batch_that_write_are_refused() -> None:
    def program(x: torch.Tensor) -> Any:
        return vmap(lambda r: torch.cond(r.sum() > 0, lambda r: r.add_(1), torch.cos, (r,)))(x)

    with pytest.raises(RuntimeError):
        braze.compile(program, fullgraph=True)(torch.randn(4, 3))


def scaled(x: torch.Tensor, scale: float) -> torch.Tensor:
    made: torch.Tensor = torch.cond(
        x.sum() > 0, lambda x: x @ x * scale, lambda x: x @ x + scale * 2, (x,)
    )
    return made


def accumulated(x: torch.Tensor, scale: float) -> torch.Tensor:
    made: torch.Tensor = scan(lambda c, row: (c * scale + row, c * (scale + 1)), x[0], x)[1]
    return made


def _accumulated(x: torch.Tensor, scale: float) -> torch.Tensor:
    carried, made = x[0], []
    for row in x:
        made.append(carried * (scale + 1))
        carried = carried * scale + row
    return torch.stack(made)


NUMBERS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (scaled, lambda x, s: x @ x * s if x.sum() > 0 else x @ x + s * 2),
    (accumulated, _accumulated),
]


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize(("program", "meaning"), NUMBERS)
def test_functions_close_over_numbers_that_change(
    program: Callable[..., Any], meaning: Callable[..., Any], gradients: bool, journal: Journal
) -> None:
    """One graph serves them all; another one the first."""
    compiled = braze.compile(program, fullgraph=True)
    for scale in (1.0, 2.5, 3.5, -1.0):
        for sign in (1, -1):
            x = (torch.rand(3, 3) * sign).requires_grad_(gradients)
            found, expected = compiled(x, scale), meaning(x, scale)
            torch.testing.assert_close(found, expected)
            if gradients:
                pair = [torch.autograd.grad(made.sum(), x)[0] for made in (found, expected)]
                torch.testing.assert_close(*pair)
    records = journal.records()
    assert sum(record.outcome == "graph" for record in records) == 2
    assert not any(record.fallbacks for record in records)


def test_scan_as_its_documentation_shows_it() -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> Any:
        carried = y = x + y
        return carried, y.clone()

    def program(start: torch.Tensor, rows: torch.Tensor) -> Any:
        return scan(add, init=start, xs=rows)

    rows = torch.arange(5.0)[:, None]
    last, sums = in_one_graph(program, torch.zeros(1), rows)
    torch.testing.assert_close((last, sums), (torch.tensor([10.0]), rows.cumsum(0)))


def _stacked(add: Any, carried: torch.Tensor, rows: torch.Tensor) -> Any:
    """What `scan` gives, by Python's own loop."""
    made = []
    for row in rows:
        carried, result = add(carried, row)
        made.append(result)
    return carried, torch.stack(made)


def _gradients(loop: Any, orders: int) -> Any:
    """Gradients of the squares of gradients, so many times."""

    def program(start: torch.Tensor, rows: torch.Tensor, weight: torch.Tensor) -> Any:
        def turn(carried: torch.Tensor, row: torch.Tensor) -> Any:
            return ((carried * row.sin()) @ weight).tanh(), (carried * row).square()

        given = start, rows, weight
        last, results = loop(turn, start, rows)
        found = torch.autograd.grad(last.prod() + results.sum(), given, create_graph=True)
        for order in range(2, orders + 1):
            squares = torch.stack([each.square().sum() for each in found])
            found = torch.autograd.grad(squares.sum(), given, create_graph=order < orders)
        return found

    return program


@pytest.mark.parametrize("orders", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_gradients_of_gradients_through_scan(orders: int) -> None:
    """One graph, whose programs are as many for four rows as for two: a turn's, and those of its
    gradients."""
    counts = []
    for length in (2, 4):
        given = [torch.rand(shape, requires_grad=True) for shape in ((3,), (length, 3), (3, 3))]
        with mock.patch.object(region, "with_layouts", wraps=region.with_layouts) as compiled:
            found = braze.compile(_gradients(scan, orders), fullgraph=True)(*given)
        torch.testing.assert_close(
            found, _gradients(_stacked, orders)(*given), rtol=1e-4, atol=1e-5
        )
        counts.append(compiled.call_count)
    assert counts[0] == counts[1] > 2


def test_map_as_its_documentation_shows_it() -> None:
    shift = torch.randn(2, 3)

    def program(xs: list[torch.Tensor]) -> Any:
        return map_rows(lambda x: x[0] + x[1] + shift, xs)

    xs = [torch.randn(4, 2, 3), torch.randn(4, 2, 3)]
    torch.testing.assert_close(in_one_graph(program, xs), xs[0] + xs[1] + shift)
