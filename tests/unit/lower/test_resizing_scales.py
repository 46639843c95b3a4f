"""Nearest-neighbour resizing with a scale that the sizes do not say: ATen's kernels disagree."""

from __future__ import annotations

import pytest
import torch

import braze

SCALES = (0.6, 1.0, 1.1, 1.3, 1.7, 2.0, 2.3, 2.5, 3.0)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("dynamic", [None, True])
def test_every_size_and_scale_agrees(rank: int, dynamic: bool | None) -> None:
    upsample = getattr(torch.ops.aten, f"upsample_nearest{rank}d").default
    formats = {1: [], 2: [torch.channels_last], 3: [torch.channels_last_3d]}[rank]
    for scale in SCALES:
        options = {"recompile_limit": 64}
        program = lambda x, s=scale: resized(upsample, x, s, rank)  # noqa: E731
        compiled = braze.compile(program, dynamic=dynamic, options=options)
        for size in (1, 2, 3, 4, 5) if dynamic else (2, 4):
            image = torch.arange(16.0 * size).reshape(2, 8, *[1] * (rank - 1), size)
            for form in (torch.contiguous_format, *formats):
                given = image.contiguous(memory_format=form)
                expected = resized(upsample, given, scale, rank)
                assert torch.equal(compiled(given), expected), (scale, size, form)


def resized(upsample: object, x: torch.Tensor, scale: float, rank: int) -> torch.Tensor:
    scales = [None] * (rank - 1) + [scale]
    size = [1] * (rank - 1) + [max(1, int(x.shape[-1] * scale))]
    return upsample(x * 2, size, *scales)  # type: ignore[operator, no-any-return]
