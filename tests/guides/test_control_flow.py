"""Control flow on data, as the guides of `torch.cond`, `scan` and `vmap` show it (D-61 to D-65)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch.func import grad, vmap

import braze
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


def test_scan_as_its_documentation_shows_it() -> None:
    def add(x: torch.Tensor, y: torch.Tensor) -> Any:
        carried = y = x + y
        return carried, y.clone()

    def program(start: torch.Tensor, rows: torch.Tensor) -> Any:
        return scan(add, init=start, xs=rows)

    rows = torch.arange(5.0)[:, None]
    last, sums = in_one_graph(program, torch.zeros(1), rows)
    torch.testing.assert_close((last, sums), (torch.tensor([10.0]), rows.cumsum(0)))


def test_map_as_its_documentation_shows_it() -> None:
    shift = torch.randn(2, 3)

    def program(xs: list[torch.Tensor]) -> Any:
        return map_rows(lambda x: x[0] + x[1] + shift, xs)

    xs = [torch.randn(4, 2, 3), torch.randn(4, 2, 3)]
    torch.testing.assert_close(in_one_graph(program, xs), xs[0] + xs[1] + shift)
