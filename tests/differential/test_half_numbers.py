"""Half types beside numbers: every binary operator of PyTorch's database on every value of the
type, with Python numbers, 0-dim tensors and in place, gives the bytes of eager under
numerics="eager"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import binary_ufuncs

import braze

DTYPES = [torch.bfloat16, torch.float16]
NUMBERS: tuple[Any, ...] = (
    *(0.7, 0.1, 3.3, 257, -2, True),
    *(torch.tensor(0.7), torch.tensor(0.1, dtype=torch.float64), torch.tensor(257)),
)
OPERATORS = {
    info.name: info.op
    for info in binary_ufuncs
    if torch.bfloat16 in info.dtypes and not info.name.startswith("_refs.")
}


def all_values(dtype: torch.dtype) -> Tensor:
    return torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error)


def same_bytes(actual: Any, expected: Any) -> bool:
    if isinstance(expected, type) or isinstance(actual, type):
        return actual is expected
    if actual.dtype != expected.dtype:
        return False
    equal = (actual == expected) & (torch.signbit(actual) == torch.signbit(expected))
    return bool((equal | ((actual != actual) & (expected != expected))).all())


def check(program: Callable[[Tensor], Tensor], x: Tensor, what: object) -> None:
    expected = outcome(lambda: program(x.clone()))
    compiled = braze.compile(program, options={"numerics": "eager"})
    assert same_bytes(outcome(lambda: compiled(x.clone())), expected), what


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_number_gives_eagers_bytes(name: str, dtype: torch.dtype) -> None:
    op, x = OPERATORS[name], all_values(dtype)
    for number in NUMBERS:
        check(lambda x, n=number: op(x, n), x, number)
        if isinstance(number, Tensor):
            check(lambda x, n=number: op(n, x), x, (number, "first"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic_of_python_gives_eagers_bytes(dtype: torch.dtype) -> None:
    x = all_values(dtype)
    for number in NUMBERS:
        check(lambda x, n=number: n - x, x, number)
        check(lambda x, n=number: n / x, x, number)
        check(lambda x, n=number: n**x, x, number)
        check(lambda x, n=number: x.add_(n), x, number)
        check(lambda x, n=number: x.mul_(n), x, number)
        check(lambda x, n=number: torch.add(x, x, alpha=n), x, number)
        check(lambda x, n=number: x.masked_fill(x > 1, n) == n, x, number)
        check(lambda x, n=number: torch.full_like(x, n) == n, x, number)
        check(lambda x, n=number: torch.where(x > 1, n, x) >= n, x, number)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_default_numerics_decide_alike(dtype: torch.dtype) -> None:
    """Truths are eager's in default numerics, too, and so is one operator on one number."""
    x = all_values(dtype)
    for number in NUMBERS:
        for op in (torch.eq, torch.lt, torch.ge, torch.add, torch.sub, torch.mul, torch.div):
            program = lambda x, n=number, op=op: op(x, n)  # noqa: E731
            expected = outcome(lambda f=program: f(x))
            assert same_bytes(outcome(lambda f=program: braze.compile(f)(x)), expected), number
