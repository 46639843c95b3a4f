"""Operators on NumPy's scalars and Python's numbers: NumPy's class, dtype and bits (NEP 50)."""

from __future__ import annotations

import itertools
import operator
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import braze

# NumPy's float64 is a Python float: where it changes from call to call, a float comes out.
_SCALARS = [np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_, np.complex64]
_NUMBERS: list[Callable[[int], Any]] = [float, int, bool, complex]
_OPERATORS = [
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv),
    *(operator.mod, operator.pow, operator.and_, operator.or_, operator.xor, operator.lshift),
    *(operator.rshift, operator.lt, operator.le, operator.eq, operator.ne, operator.ge),
    operator.gt,
]


def _told(value: Any) -> tuple[type, Any, str]:
    return type(value), getattr(value, "dtype", None), repr(value)


def _takes(op: Any, left: Any, right: Any) -> bool:
    try:
        op(left, right)
    except (TypeError, OverflowError, ValueError):
        return False
    return True


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("scalar", _SCALARS)
def test_results_are_numpys(scalar: Any, is_first: bool, dynamic: bool | None) -> None:
    for number in _NUMBERS:
        pairs = [(scalar(3), number(n)) for n in (2, 5, 6)]
        pairs = pairs if is_first else [(b, a) for a, b in pairs]
        wanted = [op for op in _OPERATORS if all(itertools.starmap(_fits(op), pairs))]
        assert len(wanted) > 5

        def program(left: Any, right: Any, wanted: Any = tuple(wanted)) -> list[Any]:
            return [op(left, right) for op in wanted] + [left + right * left]

        compiled = braze.compile(program, dynamic=dynamic)
        for left, right in pairs:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                eager, ours = program(left, right), compiled(left, right)
            assert list(map(_told, ours)) == list(map(_told, eager))


def _fits(op: Any) -> Callable[[Any, Any], bool]:
    def fits(left: Any, right: Any) -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _takes(op, left, right)

    return fits
