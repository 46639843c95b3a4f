"""Products whose operands are computed where they are multiplied: on a device beside eager and
float64, as tuning chooses, and with that way chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.devices import cuda
from braze.options import config
from tests.gpu.checks import NEEDS_DEVICE, kept_choices

pytestmark = NEEDS_DEVICE
_MODE = "max-autotune-no-cudagraphs"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path) -> Iterator[Path]:
    with config.patch(cache_dir=tmp_path):
        yield tmp_path


def _rows(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, w.to(x.dtype) * s[:, None])


def _columns(x: Any, w: Any, s: Any) -> Any:
    return F.gelu(x @ (w.to(x.dtype) * s))


def _pair(x: Any, w: Any, s: Any) -> Any:
    return (F.silu(x) * x) @ (w.to(x.dtype) * s)


def _gradient(x: Any, w: Any, s: Any) -> Any:
    return F.relu(x).t() @ x * s[0]


# What is computed, the shape of x, that of the weight and its dtype, scales, x's dtype.
Shape = tuple[int, int]
CASES: tuple[tuple[Callable[..., Any], Shape, Shape, torch.dtype, int, torch.dtype], ...] = (
    (_rows, (1, 1024), (512, 1024), torch.int8, 512, torch.bfloat16),
    (_rows, (16, 1000), (500, 1000), torch.uint8, 500, torch.float16),
    (_rows, (5, 520), (256, 520), torch.float8_e4m3fn, 256, torch.bfloat16),
    (_rows, (300, 256), (512, 256), torch.int8, 512, torch.bfloat16),
    (_columns, (3, 1024), (1024, 512), torch.int8, 512, torch.bfloat16),
    (_columns, (100, 200), (200, 300), torch.float8_e5m2, 300, torch.float16),
    (_columns, (40, 256), (256, 128), torch.float32, 128, torch.bfloat16),
    (_columns, (7, 200), (200, 300), torch.int8, 300, torch.float32),
    (_pair, (200, 256), (256, 64), torch.int8, 64, torch.bfloat16),
    (_gradient, (300, 200), (200, 64), torch.int8, 64, torch.bfloat16),
)


@pytest.mark.parametrize(
    ("number", "is_forced"), [*((n, True) for n in range(len(CASES))), (0, False), (8, False)]
)
def test_errors_are_at_most_twice_eagers(
    number: int, is_forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, rows, shape, kind, scales, dtype = CASES[number]
    if is_forced:
        monkeypatch.setattr(cuda, "quickest_way", lambda *_: 1)
    torch.manual_seed(0)
    x = (torch.randn(rows, device="cuda") / 2).to(dtype)
    w = torch.randn(shape, device="cuda") / 2
    w = (w if kind.is_floating_point else w.abs() * 40).to(kind)
    s = torch.rand(scales, device="cuda").to(dtype)
    compiled = braze.compile(function, mode=_MODE)
    with torch.no_grad():
        found, wanted = compiled(x, w, s), function(x, w, s)
        exact = function(x.double(), w.double(), s.double())
    error, theirs = (float((y.double() - exact).norm() / exact.norm()) for y in (found, wanted))
    assert found.stride() == wanted.stride() and found.dtype == wanted.dtype
    assert error <= max(2 * theirs, torch.finfo(dtype).eps / 4), (error, theirs)


def test_a_weight_of_bytes_is_read_as_bytes_and_the_choice_is_kept(_own_cache: Path) -> None:
    """What decoding pays for is reading the weight: writing it out as halves is clearly slower."""
    x = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    w = torch.randint(-127, 127, (8192, 4096), device="cuda", dtype=torch.int8)
    s = torch.rand(8192, device="cuda", dtype=torch.bfloat16)

    results, seen = [], []
    for _ in range(2):
        compiled = braze.compile(_rows, mode=_MODE)
        with torch.no_grad():
            results.append(compiled(x, w, s))
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            compiled(x, w, s)
            assert torch.cuda.max_memory_allocated() - before < w.nbytes
        seen.append(kept_choices(_own_cache))
    assert torch.equal(*results) and seen[0] == seen[1]
    chosen = [choice["chosen"] for choice in seen[0].values()]
    assert chosen and "library" not in chosen


def test_master_weights_under_autocast() -> None:
    layer = torch.nn.Linear(512, 1024, device="cuda")
    compiled = braze.compile(layer, mode=_MODE)
    x = torch.randn(16, 512, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        found, wanted = compiled(x), layer(x)
        exact = F.linear(x.double(), layer.weight.double(), layer.bias.double()).detach()
        found.float().sum().backward()
    error, theirs = (float((y.detach().double() - exact).norm()) for y in (found, wanted))
    assert error <= 2 * theirs and found.dtype == wanted.dtype
    assert layer.weight.grad is not None
    torch.testing.assert_close(
        layer.weight.grad, x.bfloat16().sum(0).float().expand(1024, 512), rtol=2e-2, atol=2e-2
    )
