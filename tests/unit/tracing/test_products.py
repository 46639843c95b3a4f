"""Products of matrices with symbolic sizes: the operators that they have with numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest
import torch
from torch.nn import functional

import braze
from braze.trace import Journal

Product: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
WEIGHT = torch.arange(40.0).reshape(5, 8) / 40
PRODUCTS: dict[str, Product] = {
    "linear": lambda x: functional.linear(x, WEIGHT),
    "linear with a bias": lambda x: functional.linear(x, WEIGHT, torch.ones(5)),
    "matmul": lambda x: x @ WEIGHT.t(),
    "matmul of four dimensions": lambda x: torch.matmul(x[None], WEIGHT.mT),
    "with a vector": lambda x: x @ WEIGHT[0],
}


def operators(journal: Journal, product: Product, dynamic: bool) -> tuple[str, ...]:
    def run(x: torch.Tensor) -> torch.Tensor:
        return product(x)

    before = len(journal.records())
    compiled = braze.compile(run, dynamic=dynamic, backend="aot_eager")
    for rows in (3, 6) if dynamic else (3,):
        x = torch.randn(rows, 4, 8)
        assert torch.equal(compiled(x), product(x))
    (record,) = journal.records()[before:]
    return record.ops


@pytest.mark.parametrize("half", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_operators_of_numbers(journal: Journal, name: str, half: bool) -> None:
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
        found = operators(journal, PRODUCTS[name], dynamic=True)
        assert found == operators(journal, PRODUCTS[name], dynamic=False)


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_rows_in_a_row(rows: int) -> None:
    @braze.compile(dynamic=True)
    def run(x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, WEIGHT) * 2

    for x in (torch.randn(rows, 4, 8), torch.randn(4, rows, 8), torch.randn(4, 8, rows).mT):
        with torch.no_grad():
            expected = functional.linear(x, WEIGHT) * 2
            assert torch.allclose(run(x), expected)
            assert run(x).stride() == expected.stride()
