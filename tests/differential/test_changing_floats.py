"""A Python float among an operator's arguments changes between calls, so that it is a symbol from
the second compile on: every operator of PyTorch's database that takes one agrees with eager, and
no stage fails."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import braze
from tests.differential.graph_text import FAULT

# Random results, or memory that nobody wrote.
_LEFT_OUT = ("empty", "rand", "bernoulli", "multinomial", "normal", "dropout", "rrelu", "uniform")
_LEFT_OUT += ("cauchy", "exponential", "geometric", "log_normal", "new_empty", "fractional")


def _float_places(sample: Any) -> Iterator[tuple[int | str, float]]:
    """Where a sample has a float that is finite."""
    for place, value in (*enumerate(sample.args), *sample.kwargs.items()):
        if type(value) is float and math.isfinite(value):
            yield place, value


def _cases() -> Iterator[tuple[str, Any]]:
    seen = set()
    for info in op_db:
        name = f"{info.name}.{info.variant_test_name}".rstrip(".")
        if torch.float32 not in info.dtypes or any(word in name for word in _LEFT_OUT):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for sample in info.sample_inputs("cpu", torch.float32):
                for place, value in _float_places(sample):
                    if (name, place) not in seen:
                        seen.add((name, place))
                        yield f"{name}[{place}]", (info.op, sample, place, value)


def _program(op: Callable[..., Any], sample: Any, place: int | str) -> Callable[..., Any]:
    def program(first: Any, number: float) -> Any:
        args, kwargs = list(sample.args), dict(sample.kwargs)
        if isinstance(place, int):
            args[place] = number
        else:
            kwargs[place] = number
        return op(first, *args, **kwargs)

    return program


def _outcome(call: Callable[[], Any]) -> Any:
    torch.manual_seed(0)  # some drop values at random
    try:
        return call()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in _cases()])
def test_changing_float_gives_eagers_result(case: Any) -> None:
    op, sample, place, value = case
    program = _program(op, sample, place)
    compiled = braze.compile(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.filterwarnings("error", FAULT, braze.errors.BrazeWarning)
        for number in (value, value * 0.5 + 0.25, value + 1.0, value):
            expected = _outcome(lambda n=number: program(sample.input, n))
            actual = _outcome(lambda n=number: compiled(sample.input, n))
            if isinstance(expected, type) or isinstance(actual, type):
                assert actual == expected, number
            else:
                torch.testing.assert_close(actual, expected, equal_nan=True)
