"""Errors that an operator raises for what its tensors hold, and the program handles: no fault."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze

OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "bernoulli of p": lambda x: torch.bernoulli(x, 2.0),
    "bernoulli": lambda x: torch.bernoulli(x + 5),
    "multinomial": lambda x: torch.multinomial(x - 5, 1),
    "bincount": lambda x: torch.bincount((x - 5).long()),
    "one_hot of none": lambda x: torch.nn.functional.one_hot(x[:0].long()),
    "one_hot": lambda x: torch.nn.functional.one_hot((x - 5).long()),
    "gather": lambda x: torch.gather(x, 0, (x + 5).long()),
    "cholesky": lambda x: torch.linalg.cholesky(-torch.eye(3) * x),
    "inverse": lambda x: torch.linalg.inv(torch.zeros(3, 3) * x),
    "embedding": lambda x: torch.nn.functional.embedding((x + 9).long(), x.view(3, 1)),
    "poisson": lambda x: torch.poisson(x - 5),
    "max of none": lambda x: x[:0].max(),
    "normal": lambda x: torch.normal(x, x - 5),
    "repeat_interleave": lambda x: torch.repeat_interleave(x, (x - 5).long()),
    "split": lambda x: torch.split(x, [1, 1]),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_handled_error_is_no_fault(name: str) -> None:
    def f(x: Tensor) -> Any:
        try:
            return OPERATORS[name](x)
        except (RuntimeError, IndexError) as error:
            return type(error).__name__, str(error), x + 1

    compiled, x = braze.compile(f), torch.ones(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert repr(compiled(x)) == repr(f(x))
    assert not [str(one.message) for one in caught if "bug in Braze" in str(one.message)]
    assert sys.gettrace() is None
