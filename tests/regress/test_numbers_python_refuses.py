"""Numbers of tensors for which Python raises, or computes a complex number, where an operator on
tensors gives infinity or NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze


def _outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except (ArithmeticError, ValueError) as problem:
        return type(problem), str(problem)


_PROGRAMS: dict[str, tuple[Callable[[Tensor], Any], tuple[float, ...]]] = {
    "root": (lambda x: x + math.sqrt(x.item()), (4.0, -1.0, math.nan)),
    "logarithm": (lambda x: x + math.log(x.item()), (4.0, 0.0, -1.0)),
    "exponential": (lambda x: x + math.exp(x.item()), (1.0, 1000.0, math.inf)),
    "sine": (lambda x: x + math.sin(x.item()), (1.0, math.inf)),
    "quotient": (lambda x: x + 1 / x.item(), (2.0, 0.0, math.inf)),
    "power": (lambda x: x + x.item() ** 0.5, (2.0, -2.0)),
    "large power": (lambda x: x + (x.item() * 1e200) ** 2, (1e-200, 2.0)),
    "two of them": (lambda x: x + math.exp(x.item()) / (x.item() - 3), (2.0, 1000.0, 3.0)),
}


@pytest.mark.parametrize("name", _PROGRAMS)
def test_raises_or_computes_as_python_does(name: str) -> None:
    function, numbers = _PROGRAMS[name]
    compiled = braze.compile(function, backend="aot_eager")
    for number in (*numbers, *numbers[:1]):
        x = torch.tensor(number)
        expected, actual = _outcome(function, x), _outcome(compiled, x)
        if isinstance(expected, Tensor):
            assert torch.equal(expected.nan_to_num(), actual.nan_to_num())
        else:
            assert actual == expected


def test_the_last_bit_is_that_of_math() -> None:
    names = ("sqrt", "exp", "log", "sin", "cos", "tanh")

    def functions(x: Tensor) -> tuple[float, ...]:
        number = x.item()
        return tuple([getattr(math, name)(number) for name in names])

    compiled = braze.compile(functions, backend="aot_eager")
    for number in torch.linspace(0.01, 10, 200, dtype=torch.float64):
        assert compiled(number) == functions(number)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_raises_as_python_does_beside_writes(backend: str) -> None:
    def step(x: Tensor, y: Tensor) -> float:
        x.sub_(1)
        y.mul_(2)
        number = 1 / x.item()
        x.add_(number)
        return number

    compiled = braze.compile(step, backend=backend)
    for start in (3.0, 1.0, 4.0):
        given, other = (torch.tensor(start), torch.ones(3)), (torch.tensor(start), torch.ones(3))
        assert _outcome(compiled, *given) == _outcome(step, *other)
        assert torch.equal(given[0], other[0]) and torch.equal(given[1], other[1])


def test_what_handles_it_goes_its_own_way() -> None:
    def step(x: Tensor) -> float:
        x.sub_(1)
        try:
            return 1 / x.item()
        except ZeroDivisionError:
            return -1.0

    compiled = braze.compile(step, backend="aot_eager")
    x, other = torch.tensor(3.0), torch.tensor(3.0)
    assert [compiled(x) for _ in range(4)] == [step(other) for _ in range(4)] == [0.5, 1, -1, -1]


def test_an_exponent_from_outside_stays_in_range() -> None:
    def scale(x: Tensor, n: int) -> Tensor:
        return x * 2.0**n

    compiled = braze.compile(scale, backend="aot_eager")
    for n in (1, 2, 3, 5000, 4):
        x = torch.ones(2)
        assert str(_outcome(compiled, x, n)) == str(_outcome(scale, x, n))


def test_a_module_without_a_name() -> None:
    """Whether the code is an optimizer's is asked of its module, which may have no name."""
    space: dict[str, Any] = {"__name__": None, "math": math}
    exec("def root(x):\n    return x + math.sqrt(x.item())", space)
    compiled = braze.compile(space["root"], backend="aot_eager")
    assert compiled(torch.tensor(4.0)) == 6
