"""Class statements inside a captured function."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze


def with_function(x: torch.Tensor, scale: int) -> torch.Tensor:
    def scaled(y: torch.Tensor) -> torch.Tensor:
        return y * scale

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, y: torch.Tensor) -> torch.Tensor:
            return scaled(y)

    return Scale.apply(x) + 1


def with_instance(x: torch.Tensor) -> torch.Tensor:
    class Pair:
        factor = 3

        def __init__(self, y: torch.Tensor) -> None:
            self.y = y

        @property
        def product(self) -> torch.Tensor:
            return self.y * self.factor

    return Pair(x).product


def that_returns_one(x: torch.Tensor) -> Any:
    class Box:
        def __init__(self, y: torch.Tensor) -> None:
            self.y = y

    return Box(x + 1)


def with_code_in_the_body(x: torch.Tensor) -> torch.Tensor:
    class Sizes:
        total = x.numel() + 1

    return x * Sizes.total


def test_a_class_that_stays_inside() -> None:
    x = torch.randn(3)
    for function, arguments in ((with_function, (x, 2)), (with_instance, (x,))):
        report = braze.explain(function)(*arguments)
        assert report.break_count == 0 and report.graph_count == 1
        assert torch.equal(report.result, function(*arguments))


def test_a_class_that_leaves_is_the_callers_own() -> None:
    compiled = braze.compile(that_returns_one)
    x = torch.randn(3)
    first, second = compiled(x), compiled(x)
    assert torch.equal(first.y, x + 1)
    assert type(first) is not type(second)


def test_a_body_that_computes() -> None:
    x = torch.randn(3)
    report = braze.explain(with_code_in_the_body)(x)
    assert report.break_count == 0
    assert torch.equal(report.result, x * 4)


def with_a_comprehension_over_an_outer_variable(x: torch.Tensor) -> Any:
    y = 1

    class Numbers:
        nonlocal y
        y = 2
        locals()["y"] = 3
        pairs = [(x, y) for x in range(2)]
        own = [-y for y in range(3)]
        calls = [(lambda y=y: (y, z)) for z in range(3)]  # noqa: B023
        after = y

    called = [call() for call in Numbers.calls]
    return x + y, Numbers.pairs, Numbers.own, called, Numbers.after


def with_a_global_in_the_body(x: torch.Tensor) -> Any:
    helper = 5

    class Numbers:
        global helper
        pairs = [(x, helper) for x in range(2)]
        own = [-helper for helper in range(3)]

    return x + helper, Numbers.pairs, Numbers.own


@pytest.mark.parametrize(
    "function", [with_a_comprehension_over_an_outer_variable, with_a_global_in_the_body]
)
def test_comprehensions_in_a_body(function: Any) -> None:
    """From Python 3.12 they run in the body, with variables of their own."""
    report = braze.explain(function, backend="eager")(torch.ones(2))
    assert report.break_count == 0
    assert report.result[1:] == function(torch.ones(2))[1:]
