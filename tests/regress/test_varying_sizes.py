"""Programs that compiled at each size: now they do once for the first, and once for all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal

Program = Callable[[torch.Tensor], Any]


def complex_parts(x: torch.Tensor) -> Any:
    """FNet: views of complex values as real ones, and back."""
    transformed = torch.fft.fftn(x, dim=(1, 2))
    pairs = torch.view_as_complex(torch.stack([x, x + 1], -1))
    return transformed.real, transformed.imag + x, pairs[:, 1:]


def whole_floats_in_arange(x: torch.Tensor) -> Any:
    """XLNet: `-1.0` says how many, as `-1` does."""
    down = torch.arange(x.shape[1], -x.shape[0], -1.0, dtype=torch.int64)
    return down, torch.arange(0.0, x.shape[1], 2.0), torch.arange(x.shape[1], dtype=torch.float64)


def from_the_end_of_a_table(x: torch.Tensor) -> Any:
    """MPT: the length is written as 2048 less what is cut off, and had from that."""
    table = torch.arange(2048).view(1, 2048)
    return table[:, max(0, table.size(1) - x.size(1)) :] + x[:, :, 0]


def pooled_rows(x: torch.Tensor) -> Any:
    """CANINE: C++ asks for the length of what it pools in one dimension."""
    pool = torch.nn.functional.max_pool1d
    rows = x.transpose(1, 2)
    return pool(rows.contiguous(), 3, ceil_mode=True), pool(rows, kernel_size=(2,), padding=1)


def chunks_of_a_range(x: torch.Tensor) -> Any:
    """CANINE: how many chunks there are is the program, not how long the last one is."""
    ends = [(start, min(x.shape[1], start + 128)) for start in range(0, x.shape[1], 128)]
    back = [place for place in range(-1, -x.shape[1], -300)]  # noqa: C416
    return torch.cat([x[:, start:end] * 2 for start, end in ends], 1), x + len(back)


PROGRAMS: tuple[Program, ...] = (
    complex_parts,
    whole_floats_in_arange,
    from_the_end_of_a_table,
    pooled_rows,
    chunks_of_a_range,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_two_compiles(journal: Journal, program: Program) -> None:
    compiled = braze.compile(program)
    for batch, length in ((2, 16), (3, 24), (5, 56), (4, 40), (6, 31)):
        x = torch.randn(batch, length, 6)
        for mine, theirs in zip(_tensors(compiled(x)), _tensors(program(x)), strict=True):
            torch.testing.assert_close(mine, theirs)
            assert mine.stride() == theirs.stride()
    assert not journal.fallbacks()
    assert len(journal.records()) == 2


def test_more_chunks_are_another_program(journal: Journal) -> None:
    compiled = braze.compile(chunks_of_a_range)
    for length, compiles in ((100, 1), (120, 2), (140, 3), (200, 3), (256, 3), (257, 4), (5, 4)):
        x = torch.randn(2, length, 3)
        for mine, theirs in zip(compiled(x), chunks_of_a_range(x), strict=True):
            torch.testing.assert_close(mine, theirs)
        assert len(journal.records()) == compiles, length


def _tensors(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
