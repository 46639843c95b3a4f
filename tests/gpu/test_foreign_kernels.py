"""Kernels that the program starts itself, past PyTorch's dispatcher: they run on real memory alone.

Called on a tensor without memory, PyTorch's own jiterator and a kernel of Triton's wrote to no
memory at all, and nothing ran on the device from then on."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.report.explain import summarise
from braze.trace import Journal
from tests.gpu.checks import NEEDS_DEVICE

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = NEEDS_DEVICE


def test_jiterator_breaks_the_graph(journal: Journal) -> None:
    code = "template <typename T> T twice(T x, T y) { return 2 * x + y; }"
    twice = torch.cuda.jiterator._create_jit_fn(code)

    def function(x: torch.Tensor) -> torch.Tensor:
        return twice(x.sin(), x).cos()

    x = torch.randn(1000, device="cuda")
    compiled = braze.compile(function)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), function(x))
    report = summarise("", journal, None)
    assert report.break_count == 1 and not report.fallbacks


@triton.jit
def _add_one(source, target, count, block: tl.constexpr):  # type: ignore[no-untyped-def]
    index = tl.program_id(0) * block + tl.arange(0, block)
    value = tl.load(source + index, mask=index < count)
    tl.store(target + index, value + 1, mask=index < count)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_a_triton_kernel_of_the_program(mode: str | None, journal: Journal) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        result = torch.empty_like(x)
        _add_one[(triton.cdiv(x.numel(), 256),)](x, result, x.numel(), 256)
        return result.cos()

    compiled = braze.compile(function, mode=mode)
    for number in range(4):
        x = torch.randn(1000 + number, device="cuda")
        torch.testing.assert_close(compiled(x), function(x))
    report = summarise("", journal, None)
    assert report.break_count == 0 and not report.fallbacks
    for operators in report.ops_per_graph:
        assert sum(n for op, n in operators.items() if "_add_one_" in op) == 1
