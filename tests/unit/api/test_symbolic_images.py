"""Pooling and resizing of images of symbolic size: by kernels of ours, one for all sizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import braze
from braze.trace import Journal
from tests.recorded import recorded

Program = Callable[..., Any]
SIZES = [(7, 9), (8, 6), (11, 16), (23, 5), (12, 12)]
EXTERN = ("pool", "upsample")


def check(program: Program, rank: int = 2, gradient: bool = False) -> None:
    """At all sizes as eager, in one compile, without pooling or resizing by ATen."""
    with recorded() as journal:
        compiled = braze.compile(
            program, dynamic=True, options={"suppress_errors": False, "verify": True}
        )
    torch.manual_seed(0)
    for size in SIZES:
        shape = (2, 3, *((5,) if rank == 3 else ()), *size)
        x = torch.randn(shape, requires_grad=gradient)
        expected, found = program(x), compiled(x)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        if gradient:
            wanted = torch.autograd.grad(expected.square().sum(), x)
            torch.testing.assert_close(torch.autograd.grad(found.square().sum(), x), wanted)
    records = journal.records()
    assert not journal.fallbacks(), journal.fallbacks()
    assert len(records) == 1 + gradient
    left = [op for record in records for op in record.extern_ops]
    assert not [op for op in left if any(word in op for word in EXTERN)], left


def windows() -> list[Any]:
    """(kernel, stride, padding, ceil_mode)"""
    chosen = itertools.product((2, 3, (3, 2)), (1, 2, 3), (0, 1), (False, True))
    return list(chosen)[::3]


@pytest.mark.parametrize("given", windows(), ids=str)
def test_maximum(given: Any) -> None:
    kernel, stride, padding, ceil = given
    check(lambda x: functional.max_pool2d(x, kernel, stride, padding, ceil_mode=ceil))


@pytest.mark.parametrize("dilation", [2, (1, 2)], ids=str)
def test_maximum_of_spread_windows(dilation: Any) -> None:
    check(lambda x: functional.max_pool2d(x, 2, 2, 1, dilation))


@pytest.mark.parametrize("given", windows(), ids=str)
def test_average(given: Any) -> None:
    kernel, stride, padding, ceil = given
    check(lambda x: functional.avg_pool2d(x, kernel, stride, padding, ceil))
    check(lambda x: functional.avg_pool2d(x, kernel, stride, padding, ceil, False))


def test_positions_of_maxima() -> None:
    check(lambda x: functional.max_pool2d(x, 3, 2, 1, return_indices=True))
    check(lambda x: functional.max_pool2d(x, (2, 3), 2, 1, (2, 1), return_indices=True))


@pytest.mark.parametrize("size", [1, 3, (5, 2), (None, 4)], ids=str)
def test_adaptive(size: Any) -> None:
    check(lambda x: functional.adaptive_avg_pool2d(x, size))


def test_volumes() -> None:
    check(lambda x: functional.max_pool3d(x, 2, 2, 1), rank=3)
    check(lambda x: functional.avg_pool3d(x, 2, 2, 1), rank=3)


def test_channels_last() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous(memory_format=torch.channels_last)
        return functional.avg_pool2d(functional.max_pool2d(x, 3, 2, 1), 2)

    check(program)


WHOLE_IMAGES: list[Program] = [
    lambda x: functional.avg_pool2d(x, x.shape[2:]).flatten(1),
    lambda x: functional.avg_pool2d(x, kernel_size=x.shape[-2:], stride=1, ceil_mode=True),
    lambda x: functional.avg_pool1d(x[:, :, 0], x.shape[3]),
    lambda x: functional.max_pool2d(x, x.shape[2:]),
    lambda x: functional.max_pool1d(x[:, :, 0], x.size(3)).squeeze(2),
]


@pytest.mark.parametrize("program", WHOLE_IMAGES)
def test_windows_over_the_whole_image(program: Program) -> None:
    check(program)


def test_gradients_of_windows_over_the_whole_image() -> None:
    check(lambda x: functional.avg_pool2d(x, x.shape[2:]), gradient=True)
    check(lambda x: functional.max_pool2d(x.sin().relu() * 2, x.shape[2:]), gradient=True)


def test_a_symbolic_window_over_a_part_is_compiled_for_its_size() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.avg_pool2d(x, (x.shape[2] // 2, x.shape[3]), 1)

    compiled = braze.compile(program, dynamic=True, backend="aot_eager")
    for size in SIZES[:3]:
        x = torch.randn(2, 3, *size)
        torch.testing.assert_close(compiled(x), program(x))


def resizing() -> list[dict[str, Any]]:
    modes: list[dict[str, Any]] = [{"mode": "nearest"}, {"mode": "bilinear"}]
    modes.append({"mode": "bilinear", "align_corners": True})
    scales: list[dict[str, Any]] = [{"scale_factor": s} for s in (2, 3, 1.5, 0.5)]
    scales += [{"size": (9, 14)}, {"scale_factor": 2, "recompute_scale_factor": True}]
    return [{**mode, **scale} for mode, scale in itertools.product(modes, scales)]


@pytest.mark.parametrize("given", resizing(), ids=lambda g: "-".join(map(str, g.values())))
def test_resizing(given: dict[str, Any]) -> None:
    check(lambda x: functional.interpolate(x, **given))


def test_resizing_to_another_image_s_size() -> None:
    check(lambda x: functional.interpolate(x[:, :, ::2, 1:], x.shape[2:]))


@pytest.mark.parametrize(
    "program",
    [
        lambda x: functional.avg_pool2d(x, 2),
        lambda x: functional.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda x: functional.avg_pool2d(x, 3, 2, ceil_mode=True),
        lambda x: functional.interpolate(x, scale_factor=2),
    ],
)
def test_gradients(program: Program) -> None:
    check(program, gradient=True)


def test_convolutions_work_channels_last_at_all_sizes(journal: Journal) -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.Conv2d(32, 32, 3, padding=1)
    layouts = []

    def program(x: torch.Tensor) -> torch.Tensor:
        y = functional.max_pool2d(first(x).relu(), 3, 2, 1)
        return (second(y) + y).exp()

    compiled = braze.compile(program, dynamic=True)
    with torch.no_grad():
        for size in SIZES:
            x = torch.randn(8, 3, *size)
            expected, found = program(x), compiled(x)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            layouts.append(found.stride() == expected.stride())
    assert all(layouts)
    assert len(journal.records()) == 1
