"""Channels of images shared by several programs: their sums are left whole where the kernel that
reads the image again is shared, and split where it is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import generate
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.schedule import Kernel, Schedule, Spread
from braze.schedule import CUDA
from tests.unit.codegen.triton_running import MARKS, OPTIONS, planned, run_sources

pytestmark = MARKS

Tensor = torch.Tensor
Function = Callable[..., Any]

SHARING = replace(CUDA, spread_bytes=1)  # few channels are shared, too
ALONE = replace(CUDA, spread_bytes=0)
FULL, RAGGED = (4, 3, 64, 128), (5, 2, 64, 76)  # four full parts; three, the last not full


def _spreads(plan: Schedule) -> list[Spread]:
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    return [kernel.spread for kernel in kernels if kernel.spread is not None]


def _compare(function: Function, given: list[Tensor], parts: int) -> None:
    """Results and what is written to: at most twice as far from float64 as eager."""
    mine, theirs = ([x.clone() for x in given] for _ in range(2))
    exact = [x.double() for x in given]
    program, plan, used = planned(function, mine, SHARING)
    assert [spread.parts for spread in _spreads(plan)] == [parts]
    ours = run_sources(program, plan, generate(plan, OPTIONS), used)
    eager, right = function(*theirs), function(*exact)
    listed = [list(r) if isinstance(r, tuple) else [r] for r in (eager, right)]
    rows = [*zip(ours, *listed, strict=True), *zip(mine, theirs, exact, strict=True)]
    for own, other, wanted in rows:
        assert own.dtype == other.dtype and own.stride() == other.stride()
        gaps = [(x.double() - wanted).norm() for x in (own, other)]
        unit = wanted.double().norm() * torch.finfo(own.dtype).eps
        assert gaps[0] <= 2 * gaps[1] + unit, (gaps, unit)


def _trained(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    return tuple(torch.ops.aten._native_batch_norm_legit.no_stats(x, w, b, True, 0.1, 1e-5))


def _running(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.relu(F.batch_norm(x, mean, var, w, b, True, 0.1))


def _backward(dy: Tensor, x: Tensor, w: Tensor, m: Tensor, s: Tensor) -> tuple[Tensor, ...]:
    norm = torch.ops.aten.native_batch_norm_backward
    return tuple(norm(dy, x, w, None, None, m, s, True, 1e-5, [True, True, True]))


def _channels(shape: tuple[int, ...], count: int) -> list[Tensor]:
    return [torch.rand(shape[1]) + 0.5 for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("shape", "parts"), [(FULL, 4), (RAGGED, 3)])
def test_batch_norm_in_training(shape: tuple[int, ...], parts: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    _compare(_trained, [torch.randn(shape).to(dtype), *_channels(shape, 2)], parts)


@pytest.mark.parametrize(("shape", "parts"), [(FULL, 4), (RAGGED, 3)])
def test_running_statistics_are_written_once(shape: tuple[int, ...], parts: int) -> None:
    torch.manual_seed(1)
    _compare(_running, [torch.randn(shape) * 3 + 2, *_channels(shape, 4)], parts)


@pytest.mark.parametrize(("shape", "parts"), [(FULL, 4), (RAGGED, 3)])
def test_batch_norm_backward(shape: tuple[int, ...], parts: int) -> None:
    torch.manual_seed(2)
    given = [torch.randn(shape), torch.randn(shape) + 1, *_channels(shape, 3)]
    _compare(_backward, given, parts)


@pytest.mark.parametrize("shift", [0.0, 1000.0])
@pytest.mark.parametrize("shape", [FULL, RAGGED])
def test_means_that_are_far_away(shape: tuple[int, ...], shift: float) -> None:
    """Of the last part, which may have fewer points, too."""
    torch.manual_seed(3)
    x = torch.randn(shape) + shift + torch.linspace(0, 20, shape[-1])
    x[-1] += 50
    _compare(_trained, [x, *_channels(shape, 2)], 4 if shape == FULL else 3)


@pytest.mark.parametrize(("shape", "parts"), [(FULL, 4), (RAGGED, 3)])
def test_maxima_and_what_they_shift(shape: tuple[int, ...], parts: int) -> None:
    """Parts that are not full have lanes without a point: below every maximum, and no share."""

    def shares(x: Tensor) -> Tensor:
        gap = torch.exp(x - x.amax((0, 2, 3), keepdim=True))
        return gap / gap.sum((0, 2, 3), keepdim=True)

    torch.manual_seed(4)
    _compare(shares, [torch.randn(shape) - 100], parts)


IMAGE = (64, 256, 56, 56)


def _chosen(shape: tuple[int, ...], function: Function = _trained, **how: Any) -> list[Spread]:
    x = torch.empty(shape).to(**how)
    given = [x, *(torch.empty(shape[1]) for _ in range(2))]
    return _spreads(planned(function, given, CUDA)[1])


def test_choice() -> None:
    (spread,) = _chosen(IMAGE)
    assert (spread.parts, spread.length) == (25, 8192)


@pytest.mark.parametrize(
    ("shape", "why"),
    [
        ((64, 64, 112, 112), "more programs than may wait for each other"),
        ((8, 256, 56, 56), "the cache holds what is read again"),
        ((32, 512, 7, 7), "a program holds a channel"),
        ((256, 256, 27, 29), "pieces of a channel are not aligned"),
        ((20, 256, 32, 32), "a last part that is hardly full"),
    ],
)
def test_refused(shape: tuple[int, ...], why: str) -> None:
    assert not _chosen(shape), why


def test_channels_innermost_are_not_shared() -> None:
    assert not _chosen(IMAGE, memory_format=torch.channels_last)


def test_sums_without_a_second_reading_are_split() -> None:
    def totals(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x.sum((0, 2, 3)) * w + b

    x, w = torch.empty(IMAGE), torch.empty(IMAGE[1])
    plans = [planned(totals, [x, w, w], target)[1] for target in (CUDA, ALONE)]
    assert not _spreads(plans[0])
    assert len({print_schedule(plan) for plan in plans}) == 1


def test_sums_whose_kernel_is_not_shared_are_split_after_all() -> None:
    """The image is read again against its order."""

    def turned(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return x.flip(-1) * w[:, None, None] - x.mean((0, 2, 3), keepdim=True) * b[:, None, None]

    x, w = torch.empty(IMAGE), torch.empty(IMAGE[1])
    plans = [planned(turned, [x, w, w], target)[1] for target in (CUDA, ALONE)]
    assert not _spreads(plans[0])
    assert len({print_schedule(plan) for plan in plans}) == 1


def test_one_of_two_norms_is_shared() -> None:
    """The other is of an image whose channels are too long."""

    def both(x: Tensor, y: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return _trained(x, w, w)[0], _trained(y, v, v)[0]

    x, y = torch.empty(IMAGE), torch.empty(64, 64, 112, 112)
    given = [x, y, torch.empty(256), torch.empty(64)]
    assert [spread.parts for spread in _spreads(planned(both, given, CUDA)[1])] == [25]
