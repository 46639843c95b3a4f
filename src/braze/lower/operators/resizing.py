"""Resizing of images: loads at scaled positions.

Where sizes are symbols, scales that are not given are computed by the kernels, in the precision in
which ATen computes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply, cast, index, literal
from braze.ir.types import Size
from braze.lower.coordinates import (
    Coordinate,
    Coordinates,
    as_scalar,
    quotient,
    times,
)
from braze.lower.lowering import OperatorCall
from braze.lower.rules import Lowered, add_rule
from braze.shapes.expr import as_expr, constant_value


def _ratio(scale: float | None, size: int, output: int) -> float:
    """Input positions in one output position, in float32 as ATen has it."""
    exact = 1.0 / scale if scale is not None and scale > 0 else size / output
    return float(torch.tensor(exact, dtype=torch.float32, device="cpu"))


def whole_factor(size: Size, output: Size) -> int | None:
    """How many positions of the output one of the input becomes, where that is a power of two:
    of others, ATen's floats decide."""
    for factor in (1, 2, 4, 8):
        if constant_value(as_expr(output) - size * as_expr(factor)) == 0:
            return factor
    return None


def _nearest(c: Coordinate, size: Size, output: Size, scale: float | None) -> Coordinate:
    """The source position of nearest-neighbour resizing, with ATen's rounding."""
    if isinstance(size, int) and isinstance(output, int):
        return _nearest_of_numbers(c, size, output, scale)
    factor = whole_factor(size, output)
    if factor in (1, 2) or (factor is not None and scale in (None, factor)):
        return quotient(c, factor)
    if scale is not None and scale > 0:
        ratio: Scalar = literal(_ratio(scale, 0, 0), torch.float32)
    else:
        ratio = _size_ratio(size, output, torch.float32)
    place = cast(
        apply("floor", apply("mul", cast(as_scalar(c), torch.float32), ratio)), torch.int64
    )
    return apply("minimum", place, index(as_expr(size) - 1))


def _is_one_formula(size: Size, output: Size, scale: float | None) -> bool:
    """Whether all of ATen's kernels find the same positions. Some of them (two dimensions, channels
    last) take a result of the input's size for a copy, and one of twice the size for pairs,
    whatever the scale says; others compute with the scale."""
    if scale is None or scale <= 0:
        return True
    if isinstance(size, int) and isinstance(output, int):
        if output not in (size, 2 * size):
            return True
        return torch.equal(
            _positions(size, output, scale), torch.arange(output, device="cpu") * size // output
        )
    factor = whole_factor(size, output)
    if factor in (1, 2):
        return scale == factor
    # Of a result of floor(size * scale): other scales lead to such a size for one element only.
    return not (1 < scale < 1.5 or 2 < scale < 2.5)


def _positions(size: int, output: int, scale: float | None) -> torch.Tensor:
    places = torch.arange(output, device="cpu").float() * _ratio(scale, size, output)
    return places.floor().long().clamp(max=size - 1)


def _size_ratio(size: Size, output: Size, dtype: torch.dtype) -> Scalar:
    numbers = (cast(index(n), dtype) for n in (size, output))
    return apply("truediv", *numbers)


def _nearest_of_numbers(c: Coordinate, size: int, output: int, scale: float | None) -> Coordinate:
    if size == output:
        return c
    ratio = _ratio(scale, size, output)
    positions = torch.arange(output, device="cpu")
    wanted = _positions(size, output, scale)
    if output % size == 0 and torch.equal(wanted, positions // (output // size)):
        return quotient(c, output // size)
    if torch.equal(wanted, positions * size // output):
        return quotient(times(c, size), output)
    scaled = apply("mul", cast(as_scalar(c), torch.float32), ratio)
    place = cast(apply("floor", scaled), torch.int64)
    return apply("minimum", place, size - 1)


def _upsample_nearest(rank: int) -> Any:
    def lower(call: OperatorCall, self: Value, output_size: Any, *scales: Any) -> Lowered:
        sizes, outputs = call.shape_of(self)[-rank:], call.output().shape[-rank:]
        if 0 in (*sizes, *outputs):
            return None
        factors = scales if len(scales) == rank else (None,) * rank
        if not all(map(_is_one_formula, sizes, outputs, factors)):
            return None

        def body(at: Coordinates) -> Scalar:
            moved = zip(at[-rank:], sizes, outputs, factors, strict=True)
            point = tuple(_nearest(*given) for given in moved)
            return call.read(self, (*at[:-rank], *point))

        return body

    return lower


def linear_source(
    c: Coordinate,
    size: Size,
    output: Size,
    align_corners: bool,
    scale: float | None,
    dtype: torch.dtype,
) -> tuple[Scalar, Scalar, Scalar]:
    """(lower position, upper position, weight of the upper) along one dimension."""
    place = cast(as_scalar(c), dtype)
    last = index(as_expr(size) - 1)
    if align_corners:
        source = apply("mul", place, _corner_ratio(size, output, dtype))
    else:
        centred = apply("mul", apply("add", place, 0.5), _linear_ratio(size, output, scale, dtype))
        source = apply("maximum", apply("sub", centred, 0.5), 0.0)
    low = apply("minimum", cast(apply("floor", source), torch.int64), last)
    high = apply("minimum", apply("add", low, 1), last)
    weight = apply("sub", source, cast(low, dtype))
    return low, high, apply("minimum", apply("maximum", weight, 0.0), 1.0)


def _corner_ratio(size: Size, output: Size, dtype: torch.dtype) -> Scalar | float:
    if isinstance(size, int) and isinstance(output, int):
        return (size - 1) / (output - 1) if output > 1 else 0.0
    if output == 1:
        return 0.0
    ratio = _size_ratio(as_expr(size) - 1, as_expr(output) - 1, dtype)
    return apply("where", apply("gt", index(output), 1), ratio, literal(0.0, dtype))


def _linear_ratio(
    size: Size, output: Size, scale: float | None, dtype: torch.dtype
) -> Scalar | float:
    if scale is not None and scale > 0:
        return 1.0 / scale
    if isinstance(size, int) and isinstance(output, int):
        return size / output
    return _size_ratio(size, output, dtype)


def _upsample_linear(rank: int) -> Any:
    def lower(
        call: OperatorCall, self: Value, output_size: object, align_corners: bool, *scales: Any
    ) -> Lowered:
        sizes, outputs = call.shape_of(self)[-rank:], call.output().shape[-rank:]
        dtype = call.compute_dtype
        if 0 in (*sizes, *outputs):
            return None
        if not dtype.is_floating_point:
            return None
        factors = scales if len(scales) == rank else (None,) * rank

        def body(at: Coordinates) -> Scalar:
            ends = [
                linear_source(c, n, m, align_corners, f, dtype)
                for c, n, m, f in zip(at[-rank:], sizes, outputs, factors, strict=True)
            ]

            def blended(point: Coordinates, rest: Sequence[Any]) -> Scalar:
                if not rest:
                    return call.read(self, point, dtype)
                low, high, weight = rest[0]
                first = blended((*point, low), rest[1:])
                second = blended((*point, high), rest[1:])
                other = apply("sub", literal(1.0, dtype), weight)
                return apply("add", apply("mul", first, other), apply("mul", second, weight))

            return blended(at[:-rank], ends)

        return body

    return lower


def _register_resizing() -> None:
    for rank, linear in ((1, "linear1d"), (2, "bilinear2d"), (3, "trilinear3d")):
        add_rule(f"upsample_nearest{rank}d", _upsample_nearest(rank))
        add_rule(f"upsample_{linear}", _upsample_linear(rank), exact=False)


_register_resizing()
