"""Functions made in a frame that refer to themselves or to each other: identity survives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import braze


def test_function_finds_itself() -> None:
    @braze.compile(fullgraph=True)
    def make(x: Tensor) -> tuple[Tensor, Callable[[], Any]]:
        def itself() -> Any:
            return itself

        return x + 1, itself

    made = make(torch.zeros(1))[1]
    assert made() is made
    assert make(torch.zeros(1))[1]() is not made


def test_functions_find_each_other() -> None:
    @braze.compile(fullgraph=True)
    def make(x: Tensor) -> tuple[Tensor, Any, list[Any]]:
        def even(n: int) -> Any:
            return odd(n - 1) if n else even

        def odd(n: int) -> Any:
            return even(n - 1) if n else odd

        return x + 1, even, [odd]

    _, even, (odd,) = make(torch.zeros(1))
    assert even(0) is even
    assert even(1) is odd
    assert odd(1) is even


def test_instance_is_found_by_its_method() -> None:
    class Holder:
        def __init__(self) -> None:
            self.ask = lambda: self

    @braze.compile(fullgraph=True)
    def make(x: Tensor) -> tuple[Tensor, Holder]:
        return x + 1, Holder()

    made = make(torch.zeros(1))[1]
    assert made.ask() is made
