"""`torch.tensor` of a list of NumPy's numbers that the graph computes has eager's dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import braze

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
X = torch.tensor([1.0, 0.0, 2.0])
WAYS: dict[str, Callable[[list[Any]], torch.Tensor]] = {
    "tensor": torch.tensor,
    "as_tensor": torch.as_tensor,
    "tuple": lambda row: torch.tensor(tuple(row)),
    "half": lambda row: torch.tensor(row, dtype=torch.float16),
    "long": torch.LongTensor,
    "double": torch.DoubleTensor,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("other", [None, 2, 0.5, True])
def test_rows(way: str, dtype: str, other: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        array = x.numpy().astype(dtype)
        row = [array[0], array[2]] if other is None else [array[0], other, array.max()]
        return WAYS[way](row)

    expected: torch.Tensor | type[Exception]
    try:
        expected = program(X)
    except TypeError:  # a LongTensor of floats
        expected = TypeError
    if isinstance(expected, type):
        with pytest.raises(expected):
            braze.compile(program, backend="eager")(X)
        return
    found = braze.compile(program, backend="eager")(X)
    assert torch.equal(found, expected) and found.dtype == expected.dtype
    assert found.stride() == expected.stride()


def test_one_graph() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        array = x.numpy()
        return torch.tensor([array.sum(), array.mean(), 0.5]) + torch.LongTensor([np.int64(3)])

    compiled = braze.compile(program, fullgraph=True)
    for x in (X, X * 3):
        torch.testing.assert_close(compiled(x), program(x))
