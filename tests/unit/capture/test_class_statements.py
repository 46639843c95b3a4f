"""Class statements inside a captured function."""

from __future__ import annotations

from typing import Any

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
