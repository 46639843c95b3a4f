"""Names of data types that NumPy knows, tensors that its functions take, and lists of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import braze
from braze.errors import GraphBreakError

NAMES = sorted(
    {name for name in np.sctypeDict if isinstance(name, str)}
    | {f"{order}{kind}" for order in "<=" for kind in ("f4", "f8", "i2", "i8", "c16")}
)
TRACED = frozenset("?bhilBefdFD")


def is_traced(name: str) -> bool:
    return np.dtype(name).char in TRACED


@pytest.mark.parametrize("name", NAMES)
def test_every_name_of_a_data_type(name: str) -> None:
    def program(a: Any) -> Any:
        return a.astype(np.dtype(name))

    compiled = braze.compile(program, backend="eager", fullgraph=is_traced(name))
    a = np.arange(4)
    actual, expected = compiled(a), program(a)
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual, expected)


LIKE = (np.ones_like, np.zeros_like, lambda x, **given: np.full_like(x, 2.5, **given))


@pytest.mark.parametrize("like", LIKE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool, torch.complex64])
@pytest.mark.filterwarnings("ignore:Casting complex")
def test_arrays_like_tensors(like: Any, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> Any:
        return like(x), like(x, dtype=np.float64)

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    for x in (torch.ones(2, 3), torch.ones(3, 2).t(), torch.ones(())):
        for actual, expected in zip(compiled(x.to(dtype)), program(x.to(dtype)), strict=True):
            assert type(actual) is type(expected) and actual.dtype == expected.dtype
            assert actual.strides == expected.strides
            np.testing.assert_array_equal(actual, expected)


def test_arrays_like_tensors_with_gradients_raise() -> None:
    def program(x: torch.Tensor) -> Any:
        return np.ones_like(x)

    for function in (program, braze.compile(program, backend="eager")):
        with pytest.raises(RuntimeError, match="requires grad"):
            function(torch.ones(2, requires_grad=True))


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
def test_lists_of_arrays(shape: tuple[int, ...]) -> None:
    def program(a: Any) -> Any:
        return (a + 1).tolist(), a.tolist()

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    for start in (0, 3):
        a = np.arange(start, start + int(np.prod(shape))).reshape(shape)
        assert compiled(a) == program(a)
        assert list(map(type, compiled(a))) == list(map(type, program(a)))
    with pytest.raises(GraphBreakError):
        compiled(np.ones((64, 20), dtype=np.int64))
    assert braze.compile(program, backend="eager")(np.ones(3)) == program(np.ones(3))
