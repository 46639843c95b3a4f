"""Every operator of PyTorch's test database on a device: compiled beside eager, and its gradients.

Each part has a process of its own, since a fault of the device ends all work of one. To look into
an operator: `python -m tests.differential.op_sweep --device cuda --ops NAME`, or gradient_sweep.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from tests import differential
from tests.gpu.checks import NEEDS_DEVICE

pytestmark = NEEDS_DEVICE
PARTS = 12
# Why an operator differs on a device, and not on the CPU.
ONLY_HERE = {
    "corrcoef": "asks whether all weights are positive",
    "cov": "asks whether all weights are positive",
    "item": "returns a Python number read from a tensor",
    "jiterator_2inputs_2outputs": "starts a kernel past the dispatcher, after a break",
    "jiterator_4inputs_with_extra_args": "starts a kernel past the dispatcher, after a break",
    "jiterator_binary": "starts a kernel past the dispatcher, after a break",
    "jiterator_binary_return_by_ref": "starts a kernel past the dispatcher, after a break",
    "jiterator_unary": "starts a kernel past the dispatcher, after a break",
    "linalg.lstsq.grad_oriented": "PyTorch 2.11 has no rule for its shapes",
    "repeat_interleave": "the size of the result depends on data",
    "torch.ops.aten._efficient_attention_forward": "without dropout, eager leaves its seeds unset",
    "torch.ops.aten._flash_attention_forward": "without dropout, eager leaves its seeds unset",
}


def _known(sweep: str) -> frozenset[str]:
    """Operators that differ everywhere. The sweep is not imported: PyTorch's database of operators
    forbids a whole process to set flags."""
    (folder,) = differential.__path__
    lines = Path(folder, f"{sweep}_failures.txt").read_text().splitlines()
    return frozenset([line.partition(":")[0].partition(" ")[0] for line in lines])


def _failures(module: str, *arguments: str) -> dict[str, str]:
    """Operator -> why it fails, of a sweep."""
    command = [sys.executable, "-m", f"tests.differential.{module}", "--device", "cuda"]
    done = subprocess.run(
        [*command, "--samples", "1", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    failed = [line.split(" ", 2) for line in done.stdout.splitlines() if line.startswith("FAIL ")]
    return {name: reason for _, name, reason in failed}


@pytest.mark.parametrize("part", range(PARTS))
def test_results(part: int) -> None:
    found = _failures("op_sweep", "--shard", f"{part}/{PARTS}")
    assert not found.keys() - _known("op_sweep") - ONLY_HERE.keys(), found


@pytest.mark.parametrize("part", range(PARTS))
def test_gradients(part: int) -> None:
    found = _failures("gradient_sweep", "--part", str(part), str(PARTS))
    assert not found.keys() - _known("gradient_sweep") - ONLY_HERE.keys(), found


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_over_zero(dtype: torch.dtype) -> None:
    """Nothing is raised on a device; the kernel's check ended all work there instead."""

    def divide(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [
            x // y,
            x % y,
            torch.fmod(x, y),
            torch.div(x, y, rounding_mode="trunc"),
            torch.where(y == 0, 7, x // y),
        ]

    values = torch.arange(-6, 7, device="cuda").to(dtype)
    x, y = values[:, None], values.abs().sub(3).clamp(min=0)[None]
    torch.testing.assert_close(braze.compile(divide)(x, y), divide(x, y), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_quotients_that_are_whole(dtype: torch.dtype) -> None:
    """A device's shorter division gives a hair less: nothing may be cut off of that."""

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [torch.div(x, y, rounding_mode="trunc"), (x / y).floor(), (x / y == x).to(dtype)]

    y = torch.arange(1, 128, device="cuda", dtype=dtype)[None]
    x = y * torch.arange(1, 17, device="cuda", dtype=dtype)[:, None]
    x = torch.where(x <= 256, x, y)
    torch.testing.assert_close(braze.compile(function)(x, y), function(x, y), rtol=0, atol=0)


@pytest.mark.parametrize("is_weighted", [True, False])
def test_rms_norm_is_one_graph_with_its_gradient(is_weighted: bool) -> None:
    """A composition on the CPU, an operator with a gradient of its own here."""
    torch.manual_seed(0)
    norm = torch.nn.RMSNorm(64, elementwise_affine=is_weighted, device="cuda").bfloat16()
    linear = torch.nn.Linear(64, 64, device="cuda").bfloat16()
    compiled = braze.compile(lambda x: linear(norm(x)), fullgraph=True)
    x = torch.randn(4, 32, 64, device="cuda", dtype=torch.bfloat16)

    def gradients(function: Any) -> list[torch.Tensor]:
        given = x.clone().requires_grad_()
        wanted = [given, *norm.parameters(), *linear.parameters()]
        return [*torch.autograd.grad(function(given).float().square().sum(), wanted)]

    found, right = gradients(compiled), gradients(lambda x: linear(norm(x)))
    for mine, theirs in zip(found, right, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=3e-2, atol=3e-2 * theirs.abs().max().item())
