"""Gradients of linear resizing as gathers, beside the library's scatters, which a GPU's graph does
not call."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.nn.functional import interpolate

import braze
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.schedule import ExternStep
from braze.lower import lower
from braze.lower.operators import resizing_backward
from braze.options import config
from braze.schedule import CUDA, schedule
from braze.tracing import Tracer

NAMES = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}
SIZES = [
    *itertools.product((1, 2, 3), (1, 2, 3, 4, 7)),
    *((3, 24), (5, 37), (37, 5), (8, 8), (30, 31), (31, 30)),
]


@pytest.fixture
def gathering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resizing_backward, "_GATHERING", frozenset({"cpu"}))


def _program(rank: int, shape: list[int], output: list[int], corners: bool, *scales: Any) -> Any:
    op = getattr(torch.ops.aten, f"upsample_{NAMES[rank]}_backward").default
    return lambda upstream: op(upstream, output, shape, corners, *scales)


def _lowered(program: Any, given: torch.Tensor) -> Any:
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        finished = tracer.finish([program(tracer.add_input(given))])
    return lower(finished.graph, config.snapshot())


def _calls(made: Any) -> int:
    """How often the library is called."""
    steps = schedule(made, config.snapshot(), CUDA).steps
    return sum(isinstance(step, ExternStep) for step in steps)


@pytest.mark.parametrize("corners", [False, True], ids=["", "corners"])
def test_every_pair_of_sizes(corners: bool, gathering: None) -> None:
    """Of each, the sum that the library scatters, in the precision that both compute in."""
    for size, output in SIZES:
        upstream = torch.randn(2, 3, output)
        program = _program(1, [2, 3, size], [output], corners)
        made = _lowered(program, upstream)
        (found,) = run_loops(made, [upstream])
        wanted = program(upstream.double())
        torch.testing.assert_close(found.double(), wanted, atol=3e-5, rtol=3e-5)
        assert not _calls(made), (size, output)


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels-last"])
@pytest.mark.parametrize(
    ("rank", "sizes", "outputs"),
    [(2, (4, 5), (8, 15)), (2, (6, 4), (6, 9)), (2, (3, 3), (24, 24)), (3, (2, 3, 2), (4, 5, 2))],
    ids=str,
)
def test_images(
    rank: int, sizes: tuple[int, ...], outputs: tuple[int, ...], last: bool, gathering: None
) -> None:
    if last and rank != 2:
        pytest.skip("channels-last is of images")
    shape = [2, 4, *sizes]
    for corners, scales in ((False, ()), (True, (None,) * rank)):
        program = _program(rank, shape, [*outputs], corners, *scales)
        upstream = torch.randn(2, 4, *outputs)
        if last:
            upstream = upstream.contiguous(memory_format=torch.channels_last)
        made = _lowered(program, upstream)
        assert not _calls(made)
        (found,) = run_loops(made, [upstream])
        wanted = program(upstream.double())
        torch.testing.assert_close(found.double(), wanted, atol=3e-5, rtol=3e-5)
        assert found.stride() == program(upstream).stride()


def test_given_scales(gathering: None) -> None:
    """One that is not the quotient of the sizes is the library's."""
    upstream = torch.randn(1, 2, 11)
    for scale, is_kernel in ((2.2, True), (2.25, False)):
        program = _program(1, [1, 2, 5], [11], False, scale)
        made = _lowered(program, upstream)
        assert bool(_calls(made)) is not is_kernel
        (found,) = run_loops(made, [upstream])
        torch.testing.assert_close(found, program(upstream))


def test_training_through_a_decoder(gathering: None) -> None:
    """Maps of several sizes, resized and added up, as decoders of segmentation do."""
    maps = [torch.randn(2, 3, n, n, requires_grad=True) for n in (2, 4, 8)]

    def loss(*maps: torch.Tensor) -> torch.Tensor:
        parts = [interpolate(x, size=(16, 16), mode="bilinear") for x in maps]
        return torch.cat(parts, 1).square().sum()

    wanted = torch.autograd.grad(loss(*maps), maps)
    found = torch.autograd.grad(braze.compile(loss)(*maps), maps)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)


def test_on_a_cpu_it_is_the_librarys() -> None:
    upstream = torch.randn(1, 2, 8)
    assert _calls(_lowered(_program(1, [1, 2, 4], [8], False), upstream)) == 1
