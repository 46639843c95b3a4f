"""Attention written out by hand, with masks and functions of the score, to test kernels with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from braze.schedule import CUDA

Function = Callable[..., torch.Tensor]
# Kernels are for float32, too, however few scores there are.
TARGET = replace(CUDA, float32_scores=0)


@dataclass
class Data:
    """What masks and functions of the score read."""

    documents: torch.Tensor
    slopes: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor


MASKS: dict[str, Function | None] = {
    "none": None,
    "causal": lambda data, b, h, q, kv: q >= kv,
    "ahead": lambda data, b, h, q, kv: q < kv - 40,
    "window": lambda data, b, h, q, kv: (q >= kv) & (q - kv <= 30),
    "around": lambda data, b, h, q, kv: (q - kv).abs() <= 9,
    "prefix": lambda data, b, h, q, kv: (kv < 12) | (q >= kv),
    "documents": lambda data, b, h, q, kv: (data.documents[q] == data.documents[kv]) & (q >= kv),
    "other documents": lambda data, b, h, q, kv: ~(data.documents[q] == data.documents[kv]),
    "padded": lambda data, b, h, q, kv: kv < data.lengths[b],
    "by head": lambda data, b, h, q, kv: torch.where(h % 2 == 0, q >= kv, q <= kv),
    "some rows": lambda data, b, h, q, kv: (q % 3 != 0) & (kv % 2 == 0),
    "few": lambda data, b, h, q, kv: (q > 70) & (q < 75) & (kv == 100),
}

SCORES: dict[str, Function | None] = {
    "plain": None,
    "alibi": lambda data, s, b, h, q, kv: s + data.slopes[h] * (kv - q),
    "soft cap": lambda data, s, b, h, q, kv: 3.0 * torch.tanh(s / 3.0),
    "relative": lambda data, s, b, h, q, kv: s + (q - kv) * 0.1,
    "table": lambda data, s, b, h, q, kv: s + data.table[h, q - kv + 512],
}


def attention(score: Function | None, mask: Function | None) -> Callable[..., torch.Tensor]:
    """The function of queries, keys and values, and of what `Data` holds."""

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *captured: torch.Tensor
    ) -> torch.Tensor:
        data = Data(*captured)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        groups = q.shape[1] // k.shape[1]
        k, v = (x.repeat_interleave(groups, 1) if groups > 1 else x for x in (k, v))
        scores = (q.to(wide) @ k.to(wide).transpose(-2, -1)) * (1 / math.sqrt(q.shape[-1]))
        sizes = (*q.shape[:3], k.shape[2])
        places = [
            torch.arange(size, device=q.device).view([-1 if d == dim else 1 for d in range(4)])
            for dim, size in enumerate(sizes)
        ]
        if score is not None:
            scores = score(data, scores, *places).to(wide)
        if mask is not None:
            scores = torch.where(mask(data, *places), scores, -math.inf)
        weights = torch.softmax(scores, -1)
        weights = torch.where((scores == -math.inf).all(-1, keepdim=True), 0.0, weights)
        return weights.to(q.dtype) @ v

    return attend


# batch, heads, heads of keys, queries, keys, width, width of values
SHAPES = {
    "square": (2, 2, 2, 128, 128, 16, 16),
    "odd": (1, 3, 3, 150, 211, 20, 12),
    "grouped": (3, 4, 2, 70, 200, 32, 32),
    "wide": (1, 1, 1, 64, 300, 128, 64),
}


def operands(shape: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """Queries, keys and values, and the fields of `Data`."""
    batch, heads, fewer, length, count, width, out = SHAPES[shape]
    torch.manual_seed(7)
    sizes = ((heads, length, width), (fewer, count, width), (fewer, count, out))
    made = [torch.randn(batch, *size).to(dtype) for size in sizes]
    table = torch.linspace(-1, 1, 8 * 1024).reshape(8, 1024).cos()
    slopes = 2.0 ** -torch.arange(1.0, 9)
    return [*made, torch.arange(512) // 37, slopes, table, torch.tensor([150, 63, 200])]


def assert_judged(found: Any, eager: Any, exact: Any) -> None:
    """The error beside float64 is at most 1.5 times eager's, but for one rounding of the dtype."""
    assert (found.dtype, found.shape, found.stride()) == (eager.dtype, eager.shape, eager.stride())
    most = 1.5 * (eager.double() - exact).abs().max()
    step = torch.finfo(eager.dtype).eps * (0.5 if eager.dtype.itemsize == 2 else 4)
    assert (found.double() - exact).abs().max() <= most + step * exact.abs().max()


def exactly(given: list[torch.Tensor]) -> list[torch.Tensor]:
    """The operands in float64."""
    return [x.double() if x.is_floating_point() else x for x in given]
