"""Pooling and resizing: folds over windows, and loads at scaled positions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from braze.ir.graph import Value
from braze.ir.loops import Guarded, Scalar
from braze.ir.scalars import apply, cast, index, literal
from braze.ir.types import Size
from braze.lower.coordinates import (
    Coordinate,
    Coordinates,
    as_scalar,
    plus,
    quotient,
    ravel,
    times,
)
from braze.lower.formulas import divide
from braze.lower.lowering import OperatorCall
from braze.lower.reductions import fold
from braze.lower.rules import DONE, Body, Lowered, add_rule
from braze.shapes.expr import Expr, as_expr, floor_div, maximum, minimum


def per_dim(given: Any, rank: int) -> tuple[int, ...]:
    """One entry a dimension, from one or as many."""
    values = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    return values * rank if len(values) == 1 else values


@final
@dataclass(frozen=True, slots=True)
class Windows:
    """Pooling windows over the trailing dimensions; all tuples have one entry a dimension."""

    sizes: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    outputs: tuple[int, ...]

    def starts(self, out: Sequence[Coordinate]) -> tuple[Coordinate, ...]:
        """The first input position of the window of an output point; may be negative."""
        moved = zip(out, self.stride, self.padding, strict=True)
        return tuple(plus(times(c, step), -pad) for c, step, pad in moved)

    def inputs(self, out: Sequence[Coordinate], at: Sequence[Coordinate]) -> Coordinates:
        """The input position of the element `at` of a window; may lie outside."""
        moved = zip(self.starts(out), at, self.dilation, strict=True)
        return tuple(plus(start, times(k, step)) for start, k, step in moved)

    def inside(self, point: Sequence[Coordinate]) -> Scalar | None:
        """Whether an input position is one, None where it always is."""
        condition: Scalar | None = None
        for n, coordinate in enumerate(point):
            tests = []
            if self.padding[n]:
                tests.append(apply("ge", as_scalar(coordinate), 0))
            if self.last(n) >= self.sizes[n]:
                tests.append(apply("lt", as_scalar(coordinate), self.sizes[n]))
            for test in tests:
                condition = test if condition is None else apply("and", condition, test)
        return condition

    def last(self, n: int) -> int:
        """The last position along a dimension that any window reaches."""
        reach = self.dilation[n] * (self.kernel[n] - 1)
        return (self.outputs[n] - 1) * self.stride[n] - self.padding[n] + reach


def _windows(
    call: OperatorCall,
    self: Value,
    rank: int,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
) -> Windows | None:
    shape = call.shape_of(self)
    sizes, outputs = shape[-rank:], call.output().shape[-rank:]
    if not all(isinstance(size, int) for size in (*sizes, *outputs)) or 0 in shape:
        return None
    kernel = per_dim(kernel, rank)
    return Windows(
        tuple(int(size) for size in sizes),  # type: ignore[arg-type]
        kernel,
        per_dim(stride, rank) if stride not in ([], ()) else kernel,
        per_dim(padding, rank),
        per_dim(dilation, rank),
        tuple(int(size) for size in outputs),  # type: ignore[arg-type]
    )


def _fold_window(kind: str, rank: int, windows: Windows, element: Any) -> Body:
    """Fold `element(lead, out, k)` over the window's positions k."""

    def body(at: Coordinates) -> Scalar:
        lead, out = at[:-rank], at[-rank:]
        axes = tuple(range(rank))
        return fold(kind, lambda k: element(lead, out, k), windows.kernel, axes, False)(())

    return body


# Elements of a window that are compared one by one where positions are wanted; ATen finds those
# of larger windows.
_MOST_COMPARED = 16

# --- maximum -----------------------------------------------------------------------------------


def _lowest(dtype: torch.dtype) -> Scalar:
    if dtype.is_floating_point:
        return literal(-math.inf, dtype)
    return literal(torch.iinfo(dtype).min, dtype)


def _max_pool(rank: int) -> Any:
    def lower(
        call: OperatorCall,
        self: Value,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Lowered:
        windows = _windows(call, self, rank, kernel_size, stride, padding, dilation)
        if windows is None or (call.is_used(1) and not _may_search(windows)):
            return None
        dtype = call.compute_dtype

        def element(lead: Coordinates, out: Coordinates, k: Coordinates) -> Scalar:
            point = windows.inputs(out, k)
            value = call.read(self, (*lead, *point), dtype)
            inside = windows.inside(point)
            return value if inside is None else Guarded(inside, value, _lowest(dtype))

        if not call.is_used(1):
            call.result(0, _fold_window("max", rank, windows, element))
            return DONE
        found = _searched(rank, windows, element, dtype)
        call.result(0, lambda at: found(at)[0])
        call.result(1, lambda at: _position(at[-rank:], windows, found(at)[1]))
        return DONE

    return lower


def _may_search(windows: Windows) -> bool:
    """Whether positions are found by comparing the elements of a window one by one."""
    return math.prod(windows.kernel) <= _MOST_COMPARED and math.prod(windows.sizes) < 2**31


def _searched(
    rank: int, windows: Windows, element: Any, dtype: torch.dtype
) -> Callable[[Coordinates], tuple[Scalar, Scalar]]:
    """The maximum of a window, and how far it is from the window's start, -1 where nothing is
    above the lowest number. As ATen finds them: the first maximum, or the last NaN. Distances
    are int32, so that they fill vectors as floats do."""

    def search(at: Coordinates) -> tuple[Scalar, Scalar]:
        lead, out = at[:-rank], at[-rank:]
        best, chosen = _lowest(dtype), literal(-1, torch.int32)
        for k in itertools.product(*map(range, windows.kernel)):
            value = element(lead, out, tuple(map(as_expr, k)))
            wins = apply("gt", value, best)
            if dtype.is_floating_point:
                wins = apply("or", wins, apply("isnan", value))
            away = 0
            for n, step, size in zip(k, windows.dilation, windows.sizes, strict=True):
                away = away * size + n * step
            chosen = apply("where", wins, literal(away, torch.int32), chosen)
            best = apply("where", wins, value, best)
        return best, chosen

    return search


def _position(out: Coordinates, windows: Windows, distance: Scalar) -> Scalar:
    """Where the maximum is, counted row-major over the pooled dimensions of the input."""
    starts = windows.starts(out)
    found = plus(ravel(starts, windows.sizes), cast(distance, torch.int64))
    first = tuple(
        c if not isinstance(c, Expr) else c + step * maximum(floor_div(step - 1 - c, step), 0)
        for c, step in zip(starts, windows.dilation, strict=True)
    )
    nothing = apply("lt", distance, literal(0, torch.int32))
    return apply("where", nothing, as_scalar(ravel(first, windows.sizes)), as_scalar(found))


# --- average -----------------------------------------------------------------------------------


def window_count(
    windows: Windows, out: Sequence[Coordinate], count_include_pad: bool
) -> Expr | int:
    """How many elements a window's sum is divided by."""
    total: Expr | int = 1
    for n, start in enumerate(windows.starts(out)):
        size, padding, kernel = windows.sizes[n], windows.padding[n], windows.kernel[n]
        assert isinstance(start, Expr)
        low: Expr = start
        high = minimum(start + kernel, size + padding)
        if not count_include_pad:
            low, high = maximum(start, 0), minimum(high, size)
        total = (high - low) * total
    return total


def _avg_pool(rank: int) -> Any:
    def lower(
        call: OperatorCall,
        self: Value,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Lowered:
        windows = _windows(call, self, rank, kernel_size, stride, padding, 1)
        dtype = call.compute_dtype
        if windows is None or not dtype.is_floating_point:
            return None

        def element(lead: Coordinates, out: Coordinates, k: Coordinates) -> Scalar:
            point = windows.inputs(out, k)
            value = call.read(self, (*lead, *point), dtype)
            inside = windows.inside(point)
            return value if inside is None else Guarded(inside, value, literal(0, dtype))

        total = _fold_window("sum", rank, windows, element)

        def body(at: Coordinates) -> Scalar:
            if divisor_override is not None:
                return divide(total(at), float(divisor_override))
            number = window_count(windows, at[-rank:], count_include_pad)
            return divide(total(at), cast(index(number), dtype))

        return body

    return lower


def _adaptive_avg_pool(rank: int) -> Any:
    def lower(call: OperatorCall, self: Value, output_size: Any) -> Lowered:
        dtype = call.compute_dtype
        sizes: Any = call.shape_of(self)[-rank:]
        counts: Any = call.output().shape[-rank:]
        is_known = all(isinstance(size, int) for size in (*sizes, *counts))
        if not is_known or 0 in call.shape_of(self):
            return None
        kernel = tuple(
            size // count if size % count == 0 else -(-size // count) + 1
            for size, count in zip(sizes, counts, strict=True)
        )

        def spans(out: Coordinates) -> list[tuple[Any, Any]]:
            found = []
            for c, size, count in zip(out, sizes, counts, strict=True):
                first = quotient(times(c, size), count)
                last = quotient(plus(times(plus(c, 1), size), count - 1), count)
                found.append((first, last))
            return found

        def body(at: Coordinates) -> Scalar:
            lead, out = at[:-rank], at[-rank:]
            limits = spans(out)

            def element(k: Coordinates) -> Scalar:
                point = tuple(plus(first, c) for (first, _), c in zip(limits, k, strict=True))
                value = call.read(self, (*lead, *point), dtype)
                condition: Scalar | None = None
                for n, (place, (_, last)) in enumerate(zip(point, limits, strict=True)):
                    if sizes[n] % counts[n]:
                        test = apply("lt", as_scalar(place), as_scalar(last))
                        condition = test if condition is None else apply("and", condition, test)
                return value if condition is None else Guarded(condition, value, literal(0, dtype))

            total = fold("sum", element, kernel, tuple(range(rank)), False)(())
            for first, last in limits:
                total = divide(total, cast(as_scalar(last - first), dtype))
            return total

        return body

    return lower


def _register_pools() -> None:
    for rank in (2, 3):
        add_rule(f"max_pool{rank}d_with_indices", _max_pool(rank))
        add_rule(f"avg_pool{rank}d", _avg_pool(rank), exact=False)
        add_rule(f"_adaptive_avg_pool{rank}d", _adaptive_avg_pool(rank), exact=False)


_register_pools()


# --- resizing ----------------------------------------------------------------------------------


def _ratio(scale: float | None, size: int, output: int) -> float:
    """Input positions in one output position, in float32 as ATen has it."""
    exact = 1.0 / scale if scale is not None and scale > 0 else size / output
    return float(torch.tensor(exact, dtype=torch.float32))


def _nearest(c: Coordinate, size: int, output: int, scale: float | None) -> Coordinate:
    """The source position of nearest-neighbour resizing, with ATen's rounding."""
    if size == output:
        return c
    ratio = _ratio(scale, size, output)
    positions = torch.arange(output)
    wanted = (positions.float() * ratio).floor().long().clamp(max=size - 1)
    if output == 2 * size:
        wanted = positions // 2
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
        if not all(isinstance(size, int) and size for size in (*sizes, *outputs)):
            return None
        factors = scales if len(scales) == rank else (None,) * rank

        def body(at: Coordinates) -> Scalar:
            moved = zip(at[-rank:], sizes, outputs, factors, strict=True)
            point = tuple(_nearest(c, int(n), int(m), f) for c, n, m, f in moved)  # type: ignore[arg-type]
            return call.read(self, (*at[:-rank], *point))

        return body

    return lower


def _linear_source(
    c: Coordinate, size: Size, output: Size, align_corners: bool, scale: float | None, dtype: Any
) -> tuple[Scalar, Scalar, Scalar]:
    """(lower position, upper position, weight of the upper) along one dimension."""
    assert isinstance(size, int) and isinstance(output, int)
    place = cast(as_scalar(c), dtype)
    if align_corners:
        source = apply("mul", place, (size - 1) / (output - 1) if output > 1 else 0.0)
    else:
        ratio = 1.0 / scale if scale is not None and scale > 0 else size / output
        centred = apply("mul", apply("add", place, 0.5), ratio)
        source = apply("maximum", apply("sub", centred, 0.5), 0.0)
    low = apply("minimum", cast(apply("floor", source), torch.int64), size - 1)
    high = apply("minimum", apply("add", low, 1), size - 1)
    weight = apply("sub", source, cast(low, dtype))
    return low, high, apply("minimum", apply("maximum", weight, 0.0), 1.0)


def _upsample_linear(rank: int) -> Any:
    def lower(
        call: OperatorCall, self: Value, output_size: Any, align_corners: bool, *scales: Any
    ) -> Lowered:
        sizes, outputs = call.shape_of(self)[-rank:], call.output().shape[-rank:]
        dtype = call.compute_dtype
        if not all(isinstance(size, int) and size for size in (*sizes, *outputs)):
            return None
        if not dtype.is_floating_point:
            return None
        factors = scales if len(scales) == rank else (None,) * rank

        def body(at: Coordinates) -> Scalar:
            ends = [
                _linear_source(c, n, m, align_corners, f, dtype)
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
