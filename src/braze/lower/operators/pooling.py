"""Pooling: folds over windows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from braze.frozen import frozen
from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Guarded, Scalar
from braze.ir.kernels.scalars import apply, cast, index, literal
from braze.ir.types import Size, known_sizes
from braze.lower.coordinates import (
    Coordinate,
    Coordinates,
    as_scalar,
    plus,
    quotient,
    ravel,
    times,
    unravel,
)
from braze.lower.formulas import divide
from braze.lower.lowering import OperatorCall
from braze.lower.operators.reductions import fold
from braze.lower.rules import DONE, Body, Lowered, add_rule
from braze.shapes.expr import (
    Expr,
    as_expr,
    constant_value,
    floor_div,
    maximum,
    minimum,
    modulo,
    simplified,
)


def per_dim(given: object, rank: int) -> tuple[Any, ...]:
    """One entry a dimension, from one or as many."""
    values = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    return values * rank if len(values) == 1 else values


@final
@frozen
class Windows:
    """Pooling windows over the trailing dimensions; all tuples have one entry a dimension.

    beyond: whether a window may reach over the end of the input; beyond_padding: over the end of
        its padding (`ceil_mode`).
    """

    sizes: tuple[Size, ...]
    kernel: tuple[Size, ...]
    stride: tuple[Size, ...]
    padding: tuple[Size, ...]
    dilation: tuple[int, ...]
    outputs: tuple[Size, ...]
    beyond: tuple[bool, ...]
    beyond_padding: tuple[bool, ...]

    def starts(self, out: Sequence[Coordinate]) -> tuple[Coordinate, ...]:
        """The first input position of the window of an output point; may be negative."""
        moved = zip(out, self.stride, self.padding, strict=True)
        return tuple(plus(times(c, step), as_expr(-pad)) for c, step, pad in moved)

    def inputs(self, out: Sequence[Coordinate], at: Sequence[Coordinate]) -> Coordinates:
        """The input position of the element `at` of a window; may lie outside."""
        moved = zip(self.starts(out), at, self.dilation, strict=True)
        return tuple(plus(start, times(k, step)) for start, k, step in moved)

    def inside(self, point: Sequence[Coordinate]) -> Scalar | None:
        """Whether an input position is one, None where it always is."""
        condition: Scalar | None = None
        for n, coordinate in enumerate(point):
            tests = []
            if self.padding[n] != 0:
                tests.append(apply("ge", as_scalar(coordinate), 0))
            if self.beyond[n]:
                tests.append(apply("lt", as_scalar(coordinate), self.sizes[n]))
            for test in tests:
                condition = test if condition is None else apply("and", condition, test)
        return condition


def make_windows(
    call: OperatorCall,
    shape: Sequence[Size],
    outputs: Sequence[Size],
    kernel: object,
    stride: object = (),
    padding: object = 0,
    dilation: object = 1,
) -> Windows | None:
    """The windows of a pooling operator with these arguments, between an input of `shape` and as
    many `outputs` along its trailing dimensions; None where there is nothing to fold."""
    if 0 in shape:
        return None
    rank = len(outputs)
    kernel = per_dim(kernel, rank)
    stride = per_dim(stride, rank) if stride not in ([], ()) else kernel
    padding, dilation = per_dim(padding, rank), per_dim(dilation, rank)
    sizes = tuple(shape[-rank:])
    rooms = []
    for n in range(rank):
        last = (outputs[n] - 1) * stride[n] - padding[n] + dilation[n] * (kernel[n] - 1)
        rooms.append(sizes[n] - 1 - last)
    beyond = tuple(not call.is_nonnegative(room) for room in rooms)
    padded = zip(rooms, padding, strict=True)
    beyond_padding = tuple(not call.is_nonnegative(room + pad) for room, pad in padded)
    return Windows(sizes, kernel, stride, padding, dilation, tuple(outputs), beyond, beyond_padding)


def _windows(call: OperatorCall, self: Value, rank: int, *given: object) -> Windows | None:
    return make_windows(call, call.shape_of(self), call.output().shape[-rank:], *given)


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
        kernel_size: object,
        stride: object = (),
        padding: object = 0,
        dilation: object = 1,
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
    kernel, sizes = known_sizes(windows.kernel), known_sizes(windows.sizes)
    if kernel is None or math.prod(kernel) > _MOST_COMPARED:
        return False
    return sizes is None or math.prod(sizes) < 2**31


def _is_static(windows: Windows) -> bool:
    return known_sizes(windows.sizes) is not None


def _searched(
    rank: int, windows: Windows, element: Any, dtype: torch.dtype
) -> Callable[[Coordinates], tuple[Scalar, Scalar]]:
    """The maximum of a window, and where in the window it is, -1 where nothing is above the lowest
    number. As ATen finds them: the first maximum, or the last NaN. Where: how far it is from the
    window's start in the input; in an input of symbolic size, its number in the window. Both are
    int32, so that they fill vectors as floats do."""
    kernel = known_sizes(windows.kernel)
    assert kernel is not None, "_may_search asks for it"
    counted, steps = known_sizes(windows.sizes), windows.dilation
    if counted is None:
        counted, steps = kernel, (1,) * rank

    def search(at: Coordinates) -> tuple[Scalar, Scalar]:
        lead, out = at[:-rank], at[-rank:]
        best, chosen = _lowest(dtype), literal(-1, torch.int32)
        for k in itertools.product(*map(range, kernel)):
            value = element(lead, out, tuple(map(as_expr, k)))
            wins = apply("gt", value, best)
            if dtype.is_floating_point:
                wins = apply("or", wins, apply("isnan", value))
            away = 0
            for n, step, size in zip(k, steps, counted, strict=True):
                away = away * size + n * step
            chosen = apply("where", wins, literal(away, torch.int32), chosen)
            best = apply("where", wins, value, best)
        return best, chosen

    return search


def _position(out: Coordinates, windows: Windows, found: Scalar) -> Scalar:
    """Where the maximum is, counted row-major over the pooled dimensions of the input."""
    starts = windows.starts(out)
    place: Coordinate
    if _is_static(windows):
        place = plus(ravel(starts, windows.sizes), cast(found, torch.int64))
    else:
        inside = unravel(cast(found, torch.int64), windows.kernel)
        moved = zip(starts, inside, windows.dilation, strict=True)
        place = ravel(tuple(plus(c, times(k, step)) for c, k, step in moved), windows.sizes)
    first = tuple(
        c if not isinstance(c, Expr) else c + step * maximum(floor_div(step - 1 - c, step), 0)
        for c, step in zip(starts, windows.dilation, strict=True)
    )
    nothing = apply("lt", found, literal(0, torch.int32))
    return apply("where", nothing, as_scalar(ravel(first, windows.sizes)), as_scalar(place))


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
        high = start + kernel
        if windows.beyond_padding[n]:
            high = minimum(high, as_expr(size) + padding)
        if not count_include_pad:
            low = maximum(start, 0) if padding != 0 else start
            high = minimum(high, size) if windows.beyond[n] else high
        total = (high - low) * total
    return total


def _avg_pool(rank: int) -> Any:
    def lower(
        call: OperatorCall,
        self: Value,
        kernel_size: object,
        stride: object = (),
        padding: object = 0,
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
    def lower(call: OperatorCall, self: Value, output_size: object) -> Lowered:
        dtype = call.compute_dtype
        sizes: Any = call.shape_of(self)[-rank:]
        counts: Any = call.output().shape[-rank:]
        if 0 in call.shape_of(self) or 0 in counts:
            return None
        pairs = list(zip(sizes, counts, strict=True))
        divides = [constant_value(modulo(size, count)) == 0 for size, count in pairs]
        kernel = tuple(
            simplified(floor_div(size, count) if whole else floor_div(size - 1, count) + 2)
            for (size, count), whole in zip(pairs, divides, strict=True)
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
                    if not divides[n]:
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
