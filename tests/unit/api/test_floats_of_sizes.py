"""Floats that a program makes of sizes: no compile of their own for each size."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal

SIZES = [(4, 6), (5, 9), (8, 3), (17, 64), (33, 7)]


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x / math.sqrt(x.size(-1)) + 1 / math.sqrt(x.shape[0])


def averaged(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0) / x.shape[0] - x.mean() * (1 - 1 / x.numel())


def powers(x: torch.Tensor) -> torch.Tensor:
    return x * x.size(1) ** -0.5 + x.size(0) ** 0.5 - 0.9 ** x.size(0)


def part(x: torch.Tensor) -> Any:
    kept = int(x.shape[0] * 0.5)
    return x[:kept], x[: math.ceil(x.shape[0] / 3)], x[:, : math.floor(x.shape[1] * 0.75)]


def logarithm(x: torch.Tensor) -> torch.Tensor:
    return x * math.log(x.size(0)) + math.log(x.size(1) / 2 + 1)


def given_out(x: torch.Tensor) -> Any:
    ratio = x.shape[0] / x.shape[1]
    return ratio, float(x.shape[0]), x * ratio, int(ratio), [math.sqrt(ratio)]


def least(x: torch.Tensor) -> torch.Tensor:
    return x * min(1.0, 5 / x.shape[0]) + max(x.shape[1] * 0.1, 0.3)


def filled(x: torch.Tensor) -> torch.Tensor:
    return torch.full((x.shape[0],), 1 / x.shape[1]) + torch.linspace(0, 1, 3).sum() * x.shape[0]


PROGRAMS = [scaled, averaged, powers, part, logarithm, given_out, least, filled]


@pytest.mark.parametrize("gradient", [False, True], ids=["inference", "gradients"])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_one_compile(journal: Journal, program: Callable[..., Any], gradient: bool) -> None:
    compiled = braze.compile(
        program, dynamic=True, options={"suppress_errors": False, "verify": True}
    )
    for size in SIZES:
        x = torch.arange(math.prod(size), dtype=torch.float32).reshape(size).sin()
        y = x.clone().requires_grad_(gradient)
        x.requires_grad_(gradient)
        expected, found = program(x), compiled(y)
        torch.testing.assert_close(found, expected)
        if gradient and isinstance(expected, torch.Tensor) and expected.requires_grad:
            expected.sum().backward()
            found.sum().backward()
            torch.testing.assert_close(y.grad, x.grad)
    assert not journal.fallbacks(), journal.fallbacks()
    frames = [r for r in journal.records() if r.outcome != "backward"]
    assert len(frames) == 1, [r.guards for r in frames]


def test_a_comparison_ties_the_program_to_its_answer_or_value() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] / 2 > 3 else x - 1

    compiled = braze.compile(program, dynamic=True)
    for size in SIZES:
        x = torch.ones(size)
        torch.testing.assert_close(compiled(x), program(x))


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
def test_a_float_of_an_integer_is_a_float(backend: str) -> None:
    """Where graphs compute no numbers, the integer left the frame in its place."""

    def program(x: torch.Tensor, n: int) -> Any:
        return float(n), torch.sym_float(n + 1), float(x.shape[0]), x + 1

    compiled = braze.compile(program, backend=backend)
    for n in (2, 3, 5, 7):
        found, right = compiled(torch.ones(n), n), program(torch.ones(n), n)
        assert [repr(v) for v in found[:3]] == [repr(v) for v in right[:3]]


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
def test_a_power_that_is_too_large_raises(backend: str) -> None:
    """Of another number than the compiled one's, it was infinite."""

    def program(x: torch.Tensor, n: float) -> Any:
        return x + 1, n**-2, n**100

    compiled = braze.compile(program, backend=backend)
    for n in (2.0, 3.0, 4.0):
        assert compiled(torch.ones(2), n)[1:] == pytest.approx(program(torch.ones(2), n)[1:])
    for n in (1e-300, 1e300):
        with pytest.raises(OverflowError):
            compiled(torch.ones(2), n)
