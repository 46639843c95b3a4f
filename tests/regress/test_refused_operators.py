"""Operators that every method refuses: each is asked once, and the error names eager's classes."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

LOG: list[str] = []


def _refusing(name: str) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        LOG.append(name)
        return NotImplemented

    return method


_NAMES = ["sub", "rsub", "isub", "add", "radd", "mul", "rmul", "matmul", "pow", "divmod", "or"]
METHODS = {f"__{name}__": _refusing(name) for name in [*_NAMES, "lt", "eq"]}
Refusing: Any = type("Refusing", (), {**METHODS, "__hash__": object.__hash__})
REFUSING = Refusing()


def _subtract_in_place(left: Any, right: Any) -> Any:
    left -= right
    return left


def _add_in_place(left: Any, right: Any) -> Any:
    left += right
    return left


OPERATORS = [
    *(operator.sub, operator.add, operator.mul, operator.matmul, operator.pow, divmod),
    *(operator.or_, operator.lt, operator.ge, operator.eq, operator.ne, operator.truediv),
    *(_subtract_in_place, _add_in_place),
]
OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x,
    "size": lambda x: x.shape[0],
    "item": lambda x: x.sum().item(),
    "list": lambda x: [1],
    "text": lambda x: "s",
    "tuple": lambda x: (1, 2),
    "same": lambda x: Refusing(),
}


def _play(run: Callable[[torch.Tensor], Any]) -> list[str]:
    LOG.clear()
    for _ in range(2):
        try:
            LOG.append(repr(run(torch.ones(3))))
        except TypeError as error:
            LOG.append(str(error))
    return list(LOG)


@pytest.mark.parametrize("is_left", [True, False])
@pytest.mark.parametrize("other", OTHERS)
def test_methods_are_asked_as_in_eager(other: str, is_left: bool) -> None:
    for op in OPERATORS:
        if op is _add_in_place and other == "list" and not is_left:
            continue  # a list that is extended asks for an iterator, and has asked before

        def step(x: torch.Tensor, op: Any = op) -> Any:
            y = x + 1
            made = OTHERS[other](y)
            try:
                result = op(REFUSING, made) if is_left else op(made, REFUSING)
            except TypeError as error:
                return y, str(error)
            return y, result

        braze.reset()
        assert _play(braze.compile(step, backend="eager")) == _play(step), op
