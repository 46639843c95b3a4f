"""Values that C code alone can read were guarded by their type: later calls with other arrays,
NumPy numbers, decimals or generators gave what the first call gave."""

from __future__ import annotations

import array
import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import braze

LIMIT = datetime.date(2000, 6, 1)
DATES = [datetime.date(2000, 1, 1), datetime.date(2001, 1, 1)]
INTEGERS = [np.int64(0), np.int64(1)]
ARRAYS = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
DECIMALS = [decimal.Decimal("1.5"), decimal.Decimal("2.5")]
PROGRAMS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "number": (lambda x, a: x * a, [np.float32(2), np.float32(3)]),
    "complex number": (lambda x, a: x * a.real, [np.complex64(2), np.complex64(3)]),
    "int": (lambda x, a: x + int(a), INTEGERS),
    "float": (lambda x, a: x + float(a), INTEGERS),
    "comparison": (lambda x, a: x + 1 if a > 0 else x, INTEGERS),
    "equality": (lambda x, a: x + 1 if a == 1 else x, INTEGERS),
    "truth": (lambda x, a: x + 1 if a else x, [np.bool_(False), np.bool_(True)]),
    "membership": (lambda x, a: x + 1 if a in (1, 5) else x, INTEGERS),
    "key": (lambda x, a: x + {0: 5, 1: 7}[a], INTEGERS),
    "key of two": (lambda x, a: x + len({(a, 1): 5, (1, 1): 7}), INTEGERS),
    "key of two, looked up": (lambda x, a: x + ((1, 1) in {(a, 1): 5}), INTEGERS),
    "nested": (lambda x, a: x + ((((1, 2), 3), 4) in [(((a, 2), 3), 4)]), INTEGERS),
    "key given to C": (lambda x, a: x + dict(zip([a, 1], [1, 2])).get(1, 3), INTEGERS),
    "stored, then compared": (lambda x, a: x + [a, 2].count(1), INTEGERS),
    "index": (lambda x, a: x[a], INTEGERS),
    "text": (lambda x, a: x + len(f"{a}"), [np.int64(1), np.int64(100)]),
    "fill": (lambda x, a: torch.full((2,), a) + x, [np.float32(2), np.float32(3)]),
    "from_numpy": (lambda x, a: torch.from_numpy(a) + x, ARRAYS),
    "tensor": (lambda x, a: torch.tensor(a) + x, ARRAYS),
    "list of numbers": (lambda x, a: torch.tensor([a, a]) + x, [np.float32(2), np.float32(3)]),
    "item": (lambda x, a: x + float(a[0]), ARRAYS),
    "loop": (lambda x, a: sum([x + float(v) for v in a]), ARRAYS),
    "array": (lambda x, a: torch.tensor(a) + x, [array.array("f", [1, 2]), array.array("f", [3])]),
    "decimal": (lambda x, a: x * float(a), DECIMALS),
    "compared decimal": (lambda x, a: x * 2 if a > 2 else x, DECIMALS),
    "date": (lambda x, a: x * 2 if a > LIMIT else x, DATES),
    "part of a date": (lambda x, a: x * a.year, DATES),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_values_of_c_code(name: str) -> None:
    function, values = PROGRAMS[name]
    compiled = braze.compile(function)
    x = torch.ones(2)
    for value in (*values, *values):
        assert torch.equal(compiled(x, value), function(x, value))


def test_a_generator_of_random_numbers() -> None:
    def function(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        return x + torch.rand(2, generator=generator)

    compiled = braze.compile(function)
    for seed in (1, 2, 3):
        mine, theirs = (torch.Generator().manual_seed(seed) for _ in range(2))
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(2), mine), function(torch.ones(2), theirs))


def test_an_array_that_changes_in_place() -> None:
    compiled = braze.compile(lambda x, a: torch.tensor(a) + x)
    numbers = np.zeros(2)
    for step in range(3):
        numbers += step
        assert torch.equal(compiled(torch.ones(2), numbers), torch.tensor(numbers) + 1)
