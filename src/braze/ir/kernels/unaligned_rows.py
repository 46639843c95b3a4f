"""Products of matrices whose results have rows that begin anywhere: whose kernel writes them.

    [4096, 768] @ [768, 50257]      a row of 100,514 bytes, which 16 does not divide

The library's kernels that use matrix units at their full rate write 16 bytes at a time. Beside a
padded result, a kernel of ours writes each element where it belongs: nothing is there twice.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.ir.types import Size, known_sizes
from braze.shapes.expr import constant_value

ALIGNED = 8  # elements of 2 bytes in 16 bytes
HALVES = (torch.bfloat16, torch.float16)

# Measured from here on (an H200; 768 and 4,096 summed, 30,522 to 50,257 columns).
_LEAST_BYTES = 64 << 20
_LEAST_ROWS = 128
_LEAST_SUMMED = 256


def has_odd_rows(
    dtype: torch.dtype, sizes: Sequence[Size], strides: Sequence[Sequence[Size]]
) -> bool:
    """Whether the product of two matrices is one that our kernel writes on a GPU: both are read 16
    bytes at a time, and only the result, which is large, cannot be written so. sizes: (m, k, n);
    strides: of both and the result."""
    known = known_sizes(sizes)
    if known is None or dtype not in HALVES or any(len(stride) != 2 for stride in strides):
        return False
    rows, summed, columns = known
    *read, written = strides
    large = 2 * rows * columns >= _LEAST_BYTES and rows >= _LEAST_ROWS and summed >= _LEAST_SUMMED
    is_odd = known_sizes(written) == (columns, 1) and columns % ALIGNED != 0
    return large and is_odd and all(map(is_aligned, read))


def is_aligned(stride: Sequence[Size]) -> bool:
    """Whether all rows of a matrix, or of several, begin at multiples of 16 bytes, if the first
    does."""
    dim = contiguous_dim(stride)
    steps = [constant_value(s) for n, s in enumerate(stride) if n - len(stride) != dim]
    return dim is not None and all(step is not None and step % ALIGNED == 0 for step in steps)


def contiguous_dim(stride: Sequence[Size]) -> int | None:
    """The one of the last two dimensions that memory goes along."""
    return next((dim for dim in (-1, -2) if constant_value(stride[dim]) == 1), None)
