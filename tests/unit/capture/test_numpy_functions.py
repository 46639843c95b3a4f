"""NumPy's functions of single numbers in a frame: numbers of its graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import braze
from braze.report.explain import summarise
from tests.recorded import recorded

HELD = SimpleNamespace(width=np.float64(6.25), root=np.sqrt)


def scaled(x: Tensor) -> Tensor:
    return torch.softmax(x @ x.t() / np.sqrt(x.shape[-1]), -1)


def in_place(x: Tensor) -> Tensor:
    y = x + 1
    y *= np.sqrt(64)
    return y


def on_the_left(x: Tensor) -> Tensor:
    return np.exp(0.5) * x - np.log(2.0)


def of_numpys_own(x: Tensor) -> Tensor:
    return x * float(np.cos(HELD.width) + np.maximum(HELD.width, 7))


def held(x: Tensor) -> Tensor:
    return x + HELD.root(4.0)


def of_truths(x: Tensor) -> Tensor:
    return x * np.add(True, 0.5)


def of_arrays(x: Tensor) -> Tensor:
    return x * float(np.sqrt(np.array([4.0, 9.0])).sum())


ONE_GRAPH: list[Callable[[Tensor], Tensor]] = [
    scaled, in_place, on_the_left, of_numpys_own, held, of_truths, of_arrays,
]  # fmt: skip


def not_finite(x: Tensor) -> Tensor:
    return x * np.sqrt(-1.0)


def no_python_number(x: Tensor) -> Tensor:
    return x * int(np.power(4, 2))


def with_a_dtype(x: Tensor) -> Tensor:
    return x * float(np.sqrt(2.0, dtype=np.float32))


BROKEN: list[Callable[[Tensor], Tensor]] = [not_finite, no_python_number, with_a_dtype]


def _judge(function: Any, x: Tensor, **options: Any) -> int:
    """How many breaks; each of three calls is as in eager, its warnings too."""
    with recorded() as journal:
        compiled = braze.compile(function, options={"suppress_errors": False}, **options)
    for _ in range(3):
        outcomes = []
        for call in (function, compiled):
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                outcomes.append((call(x), [str(w.message) for w in said]))
        (right, warned), (found, ours) = outcomes
        torch.testing.assert_close(found, right, equal_nan=True)
        assert ours == warned
    return summarise("", journal, None).break_count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
@pytest.mark.parametrize("function", ONE_GRAPH)
def test_numbers_are_computed_in_the_graph(function: Any, dtype: torch.dtype) -> None:
    if dtype == torch.int64 and function in (scaled, in_place):
        dtype = torch.float64
    assert _judge(function, torch.arange(6.0).reshape(2, 3).to(dtype)) == 0


@pytest.mark.parametrize("function", BROKEN)
def test_what_is_no_finite_float_breaks(function: Any) -> None:
    assert _judge(function, torch.arange(6.0)) >= 1


def test_functions_of_a_program_s_own_are_called_once_a_call() -> None:
    seen: list[float] = []
    noted = np.frompyfunc(lambda value: seen.append(value) or np.float64(value), 1, 1)
    compiled = braze.compile(lambda x: x * noted(2.0))
    for count in (1, 2, 3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert len(seen) == count


def test_sizes_that_vary() -> None:
    compiled = braze.compile(scaled, dynamic=True)
    for width in (3, 5, 5, 8):
        x = torch.randn(2, width)
        torch.testing.assert_close(compiled(x), scaled(x))


def test_another_function_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = braze.compile(held), torch.ones(2)
    for function in (np.sqrt, np.sqrt, np.square, np.sqrt):
        monkeypatch.setattr(HELD, "root", function)
        assert torch.equal(compiled(x), held(x))
