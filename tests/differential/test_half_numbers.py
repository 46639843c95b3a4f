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
Program = Callable[[Tensor], Tensor]
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


def check(programs: dict[str, Program], x: Tensor, **options: Any) -> None:
    """Those that eager runs are compiled as one graph, those that it refuses each alone. options:
    the compiler's."""
    expected = {what: outcome(lambda p=p: p(x.clone())) for what, p in programs.items()}
    runs = {what: p for what, p in programs.items() if not isinstance(expected[what], type)}
    together = braze.compile(
        lambda x: [p(x.clone()) for p in runs.values()], fullgraph=True, options=options
    )
    for what, found in zip(runs, together(x) if runs else (), strict=True):
        assert same_bytes(found, expected[what]), what
    for what in programs.keys() - runs.keys():
        compiled = braze.compile(programs[what], options=options)
        assert same_bytes(outcome(lambda c=compiled: c(x.clone())), expected[what]), what


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_number_gives_eagers_bytes(name: str, dtype: torch.dtype) -> None:
    op = OPERATORS[name]
    programs: dict[str, Program] = {}
    for number in NUMBERS:
        programs[f"x, {number}"] = lambda x, n=number: op(x, n)
        if isinstance(number, Tensor):
            programs[f"{number}, x"] = lambda x, n=number: op(n, x)
    check(programs, all_values(dtype), numerics="eager")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_arithmetic_of_python_gives_eagers_bytes(dtype: torch.dtype) -> None:
    for n in NUMBERS:
        programs: dict[str, Program] = {
            f"{n} - x": lambda x, n=n: n - x,
            f"{n} / x": lambda x, n=n: n / x,
            f"{n}**x": lambda x, n=n: n**x,
            f"x.add_({n})": lambda x, n=n: x.add_(n),
            f"x.mul_({n})": lambda x, n=n: x.mul_(n),
            f"x + {n} * x": lambda x, n=n: torch.add(x, x, alpha=n),
            f"masked {n}": lambda x, n=n: x.masked_fill(x > 1, n) == n,
            f"full of {n}": lambda x, n=n: torch.full_like(x, n) == n,
            f"where {n}": lambda x, n=n: torch.where(x > 1, n, x) >= n,
        }
        check(programs, all_values(dtype), numerics="eager")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_default_numerics_decide_alike(dtype: torch.dtype) -> None:
    """Truths are eager's in default numerics, too, and so is one operator on one number."""
    operators = (torch.eq, torch.lt, torch.ge, torch.add, torch.sub, torch.mul, torch.div)
    for n in NUMBERS:
        programs: dict[str, Program] = {
            f"{op.__name__} {n}": lambda x, n=n, op=op: op(x, n) for op in operators
        }
        check(programs, all_values(dtype))
