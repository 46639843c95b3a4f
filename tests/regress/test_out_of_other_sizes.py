"""`out=` of factories and of operators that are composed in C++: sizes, dtypes, identity, memory.

A tensor of another size kept its own, and `kron` and `matrix_rank` wrote nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

Tensor = torch.Tensor
_Function = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, _Function] = {
    "arange": lambda o: torch.arange(5, out=o),
    "arange of a step": lambda o: torch.arange(0.0, 1.0, 4.0, out=o),
    "rand": lambda o: torch.rand(3, 3, out=o).mul_(2),
    "normal": lambda o: torch.normal(0.0, 1.0, (3,), out=o) * 2,
    "randint": lambda o: torch.randint(3, (4,), out=o) + 1,
    "randperm": lambda o: torch.randperm(4, out=o) + 1,
    "zeros": lambda o: torch.zeros(3, out=o),
    "ones": lambda o: torch.ones(2, 2, out=o),
    "full": lambda o: torch.full((2,), 3.0, out=o),
    "eye": lambda o: torch.eye(3, out=o),
    "linspace": lambda o: torch.linspace(0, 1, 4, out=o),
    "kron": lambda o: torch.kron(torch.eye(2), torch.ones(2, 2), out=o),
    "matrix_rank": lambda o: torch.linalg.matrix_rank(torch.eye(3), out=o),
    "add": lambda o: torch.add(torch.ones(3), 1, out=o),
}
SIZES: dict[str, tuple[int, ...] | None] = {
    "none": (0,),
    "one": (1,),
    "other": (2, 5),
    "the result's": None,
}


def _outcome(function: _Function, size: str, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    shape = SIZES[size]
    try:
        if shape is None:
            shape = function(torch.empty(0, dtype=dtype)).shape
        out = torch.zeros(shape, dtype=dtype)
        base = out.view(-1)
        result = function(out)
        return result, out, base, result is out
    except RuntimeError as error:
        return type(error).__name__


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize(("size", "dtype"), itertools.product(SIZES, (torch.float32, torch.int64)))
def test_values_and_sizes(size: str, dtype: torch.dtype, backend: str) -> None:
    for name, function in FUNCTIONS.items():
        expected = _outcome(function, size, dtype)
        found = _outcome(braze.compile(function, backend=backend), size, dtype)
        braze.reset()
        if isinstance(expected, str):
            assert found == expected, name
        else:
            assert found[3] == expected[3], name
            torch.testing.assert_close(found[:3], expected[:3], msg=name)
