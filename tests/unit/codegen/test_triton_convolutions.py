"""Convolutions with what reads their results as one kernel: by Triton's interpreter, beside eager
and float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import alternatives, generate, host_sources
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule
from tests.unit.codegen.test_triton_products import planned
from tests.unit.codegen.triton_running import (
    MARKS,
    ON_DEVICE,
    OPTIONS,
    run_sources,
)

pytestmark = MARKS
Shape = tuple[int, ...]


def given_of(dtype: torch.dtype, *shapes: Shape) -> list[torch.Tensor]:
    """Random tensors, images and weights with their channels innermost."""
    torch.manual_seed(0)
    made = [(torch.randn(shape) / 2).to(dtype) for shape in shapes]
    return [x.to(memory_format=torch.channels_last) if x.dim() == 4 else x for x in made]


def _normalised(x: Any, w: Any, mean: Any, variance: Any, scale: Any, shift: Any, y: Any) -> Any:
    """A block's end: a norm in inference, a residual, an activation."""
    made = F.batch_norm(F.conv2d(x, w, padding=1), mean, variance.abs() + 1, scale, shift)
    return F.relu(made + y)


def _twice(x: Any, w: Any) -> Any:
    made = F.conv2d(x, w, padding=1)
    return made, F.relu(made)


def _widened(x: torch.Tensor) -> torch.Tensor:
    return x.double()


IMAGE, WEIGHT = (2, 32, 7, 6), (24, 32, 3, 3)
CASES: dict[str, tuple[Callable[..., Any], list[Shape]]] = {
    "one element": (
        lambda x, w, y: F.relu(F.conv2d(x, w) + y),
        [(2, 64, 6, 5), (48, 64, 1, 1), (2, 48, 6, 5)],
    ),
    "one element, steps": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, stride=2)),
        [(3, 32, 9, 8), (40, 32, 1, 1), (40,)],
    ),
    "one element, padded": (lambda x, w: F.conv2d(x, w, padding=1).exp(), [IMAGE, (8, 32, 1, 1)]),
    "padded": (lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)), [IMAGE, WEIGHT, (24,)]),
    "not padded": (lambda x, w: F.relu(F.conv2d(x, w)), [IMAGE, WEIGHT]),
    "steps": (
        lambda x, w, b: F.silu(F.conv2d(x, w, b, stride=2, padding=1)),
        [IMAGE, WEIGHT, (24,)],
    ),
    "apart": (lambda x, w: F.relu(F.conv2d(x, w, dilation=2, padding=2)), [IMAGE, WEIGHT]),
    "uneven": (
        lambda x, w: F.relu(F.conv2d(x, w, stride=(2, 1), padding=(0, 2), dilation=(1, 2))),
        [IMAGE, (24, 32, 2, 3)],
    ),
    "channels of no block": (
        lambda x, w, b: F.relu(F.conv2d(x, w, b, padding=1)),
        [(2, 48, 5, 6), (20, 48, 3, 3), (20,)],
    ),
    "few channels": (
        lambda x, w: F.relu(F.conv2d(x, w, padding=1)),
        [(1, 16, 5, 6), (7, 16, 3, 3)],
    ),
    "a norm, a residual and an activation": (
        _normalised,
        [IMAGE, (32, 32, 3, 3), (32,), (32,), (32,), (32,), IMAGE],
    ),
    "the result, too": (_twice, [IMAGE, WEIGHT]),
    "a part of the image": (
        lambda x, w: F.relu(F.conv2d(x[:, 16:48, 1:], w, padding=1)),
        [(2, 64, 7, 6), WEIGHT],
    ),
    "channels of the image": (
        lambda x, w: F.relu(F.conv2d(x[:, 16:48], w)),
        [(2, 64, 7, 6), (24, 32, 1, 1)],
    ),
    "a row-major residual": (
        lambda x, w, y: F.conv2d(x, w, padding=1) + y.view(2, 24, 7, 6),
        [IMAGE, WEIGHT, (2, 24 * 7 * 6)],
    ),
    "few rows of the result": (lambda x, w: F.relu(F.conv2d(x, w)), [(2, 32, 3, 3), WEIGHT]),
}


def _products(plan: Schedule) -> list[Kernel]:
    return [s for s in plan.steps if isinstance(s, Kernel) and s.product is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_errors_are_at_most_twice_eagers(name: str, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    given = given_of(dtype, *shapes)
    made, plan = planned(function, given)
    assert len(_products(plan)) == 1, print_schedule(plan)
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    found = run_sources(made, plan, generate(plan, OPTIONS), given)
    meant = as_multiplied(given)
    wanted = _listed(function(*meant)), _listed(function(*map(_widened, meant)))
    for mine, right, exact in zip(found, *wanted, strict=True):
        assert mine.stride() == right.stride() and mine.dtype == right.dtype
        is_close(mine, right, exact, dtype)


def _listed(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


def as_multiplied(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The inputs with float32 images and weights rounded to tf32, as a device's library has them:
    here eager multiplies them as they are."""
    first, second, *rest = given
    return [_rounded(first), _rounded(second), *rest]


def _rounded(x: torch.Tensor) -> torch.Tensor:
    """Ten bits of a fraction that all round to nearest, halves away from zero."""
    if x.dtype != torch.float32:
        return x
    whole = ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    assert not torch.equal(whole, x)
    return whole


def is_close(
    found: torch.Tensor, right: torch.Tensor, exact: torch.Tensor, dtype: torch.dtype
) -> None:
    """At most twice eager's error, or some roundings: here it adds a bias before it rounds, a
    device's library adds it behind that, and matrix units cut off what they add up. A factor that
    is not rounded to tf32 would be off by two thousand."""
    errors = [float((x.double() - exact).norm() / exact.norm()) for x in (found, right)]
    roundings = 0.5 if dtype != torch.float32 else 64 if ON_DEVICE else 4
    assert errors[0] <= max(2 * errors[1], roundings * torch.finfo(dtype).eps), errors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["one element", "padded", "channels of no block"])
def test_every_candidate_of_tuning(name: str, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    given = given_of(dtype, *shapes)
    made, plan = planned(function, given)
    (ways,) = alternatives(plan, OPTIONS)
    assert len({launch.function for launch in ways}) == len(ways) >= 4
    meant = as_multiplied(given)
    right, exact = function(*meant), function(*map(_widened, meant))
    for launch in ways:
        (found,) = run_sources(made, plan, host_sources(plan, [(launch,)]), given)
        is_close(found, right, exact, dtype)


def _text(channels: int) -> str:
    given = given_of(torch.bfloat16, (2, channels, 9, 8), (64, channels, 3, 3))
    _, plan = planned(lambda x, w: F.relu(F.conv2d(x, w, padding=1)), given)
    ((launch,),) = generate(plan, OPTIONS).launches
    return launch.function.text


def test_a_block_lies_in_one_element_of_the_window() -> None:
    """Which one is a number of the loop; lanes are channels."""
    text = _text(128)
    assert "u1 = ((((pr1 // 8) % 9) + (k_block // 6) + -1) < 9)" in text
    assert "+ pc1_lane)), u6, other=0.0)" in text
    assert "pc1_lane //" not in text and "pc1 =" not in text and "tl.where" not in text


def test_a_block_across_elements_of_the_window() -> None:
    """Each lane has its own; the last block is not full."""
    text = _text(48)
    assert "u0 = ((((pr1 // 8) % 9) + ((k_block * 64 + pc1_lane) // 144) + -1) >= 0)" in text
    assert "km & u6, other=0.0)" in text and "tl.where" not in text
