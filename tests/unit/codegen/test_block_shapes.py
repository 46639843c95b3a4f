"""The likeliest blocks of tall products."""

from __future__ import annotations

import pytest

from braze.codegen.triton.block_shapes import likely_shapes
from braze.ir.device_model import H200

# Rows, columns and what is summed, of ResNet-50's and DenseNet-121's convolutions.
SIZES = (
    (100352, 64, 64),
    (100352, 64, 576),
    (100352, 256, 64),
    (25088, 128, 1152),
    (1568, 512, 4608),
    (50176, 32, 1152),
    (50176, 128, 96),
)


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize("sizes", SIZES)
def test_each_fits_a_processor_once(sizes: tuple[int, int, int], itemsize: int) -> None:
    shapes = likely_shapes(*sizes, itemsize, H200)
    assert 5 <= len(shapes) == len({*shapes}) <= 11
    for rows, columns, inner, warps, stages in shapes:
        assert stages * (rows + columns) * inner * itemsize <= 227 << 10
        assert 16 <= rows * columns // (32 * warps) <= (128 if itemsize == 2 else 64)
        assert stages == 1 or stages * inner < sizes[2] + inner


def test_few_columns_have_narrow_blocks() -> None:
    assert likely_shapes(100352, 32, 1152, 2, H200)[0][1] == 32
    assert likely_shapes(100352, 64, 576, 2, H200)[0][1] == 64


def test_a_small_result_is_cut_into_a_block_for_each_processor() -> None:
    rows, columns, *_ = likely_shapes(1568, 512, 2048, 2, H200)[0]
    assert -(-1568 // rows) * -(-512 // columns) >= 0.7 * 132


@pytest.mark.parametrize(("summed", "inner"), [(64, 64), (96, 32), (160, 32), (608, 64), (32, 32)])
def test_what_is_summed_at_once(summed: int, inner: int) -> None:
    """Half as much where the last block would be half empty, of few."""
    assert {shape[2] for shape in likely_shapes(50176, 128, summed, 2, H200)} == {inner}
