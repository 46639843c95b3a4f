"""Random programs on the way of a GPU, without one; the long run is `python -m tests.fuzz
--interpreted`."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from functools import partial

import pytest
import torch

import braze
from braze import devices
from tests.fuzz.generator import generate
from tests.fuzz.interpreted import install
from tests.fuzz.isolation import check_programs, described
from tests.fuzz.program import Program, on_device, roughly_in_float64
from tests.fuzz.training_loops import generate_loop
from tests.unit.codegen import triton_running
from tests.unit.codegen.triton_running import HAS_TRITON, ON_DEVICE

pytestmark = [
    pytest.mark.skipif(not HAS_TRITON or ON_DEVICE, reason="needs triton, and no device"),
    pytest.mark.slow,
]


def _program(seed: int) -> Program:
    return on_device(generate(seed), "cpu")


def _training(seed: int) -> Program:
    return on_device(roughly_in_float64(generate_loop(seed)), "cpu")


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_no_difference(mode: str) -> None:
    if found := described(check_programs(range(20), _program, partial(install, mode))):
        pytest.fail("python -m tests.fuzz --interpreted --seed N shows each:\n" + found)


def test_no_difference_in_training() -> None:
    prepare = partial(install, "reduce-overhead")
    if found := described(check_programs(range(8), _training, prepare)):
        pytest.fail("python -m tests.fuzz --interpreted --loops --seed N shows each:\n" + found)


def test_kernels_are_interpreted() -> None:
    """Not eager's, nor those of the CPU: one that computes something else is found."""

    def install_wrong() -> None:
        install("default")
        library = triton_running._library

        def wrong() -> object:
            made = library()
            made.sin = made.cos
            return made

        triton_running._library = wrong  # in the child alone

    text = "import torch\ndef entry(x):\n    return x.sin() * 2\n"
    program = on_device(Program(text, ("run(torch.ones(3))",)), "cpu")
    (difference,) = [d for _, d in check_programs([0], lambda _: program, install_wrong)]
    assert difference is not None and difference.kind == "state"


_BLOCK = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(32, 16, 1), nn.Conv2d(16, 16, 3, 2, 1), nn.Conv2d(16, 32, 1, bias=False)]
        )
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (16, 16, 32)])
        self.down = nn.Conv2d(32, 32, 1, 2)

    def forward(self, x):
        y = x
        for conv, norm in zip(self.convs, self.norms):
            y = norm(conv(y)) if norm is self.norms[-1] else norm(conv(y)).relu()
        return (y + self.down(x)).relu()

torch.manual_seed(0)
block = Block().to(memory_format=torch.channels_last).eval()

def entry(x):
    with torch.no_grad():
        return block(x.to(memory_format=torch.channels_last))
"""


def _install_convolutions(*, is_wrong: bool) -> None:
    """Each convolution is a kernel where it can be one, of float32 as it is."""
    torch._C._set_cudnn_allow_tf32(False)
    install("default")
    braze.config.packed_weights = 0  # the library's kernels for CPUs
    row = replace(devices._DEVICES["cpu"](), choose=lambda *_: lambda ways: min(1, len(ways) - 1))
    devices._DEVICES = types.MappingProxyType({"cpu": lambda: row})  # in the child alone
    builder = sys.modules["triton.runtime.interpreter"].InterpreterBuilder
    plain = builder.create_dot
    if is_wrong:
        builder.create_dot = lambda self, a, b, d, *how: plain(self, a, b, plain(self, a, b, d))


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_block_of_convolutions(is_wrong: bool) -> None:
    """With its norms, its residual and its steps; and products are what computes it."""
    program = on_device(Program(_BLOCK, ("run(torch.randn(2, 32, 6, 5))",)), "cpu")
    prepare = partial(_install_convolutions, is_wrong=is_wrong)
    ((_, difference),) = check_programs([0], lambda _: program, prepare)
    assert (difference is not None) is is_wrong, difference
