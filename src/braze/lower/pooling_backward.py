"""Gradients of pooling and resizing, as gathers: each input position folds over the windows that
it lies in, so that no element is written twice. The gradient of a maximum goes to one position of
its window: ATen's scatter of it takes a tenth of the time of a gather."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from braze.ir.graph import Value
from braze.ir.loops import Guarded, Scalar
from braze.ir.scalars import apply, cast, index, literal
from braze.lower.coordinates import (
    Coordinates,
    as_scalar,
    minus,
    plus,
    quotient,
    times,
)
from braze.lower.formulas import divide
from braze.lower.lowering import OperatorCall
from braze.lower.pooling import Windows, per_dim, window_count
from braze.lower.reductions import fold
from braze.lower.rules import Body, Lowered, add_rule

# Windows that one position may lie in, beyond which ATen's scatter is the better program.
_MOST_WINDOWS = 25


def _gathered(
    call: OperatorCall,
    windows: Windows,
    share: Callable[[Coordinates, Coordinates, Coordinates], Scalar],
) -> Body | None:
    """Sum of `share(lead, window, position)` over the windows that hold a position."""
    rank = len(windows.kernel)
    pairs = list(zip(windows.kernel, windows.stride, strict=True))
    reach = tuple(-(-kernel // stride) for kernel, stride in pairs)
    total = 1
    for n in reach:
        total *= n
    if total > _MOST_WINDOWS:
        return None
    dtype = call.compute_dtype

    def body(at: Coordinates) -> Scalar:
        lead, place = at[:-rank], at[-rank:]

        def element(back: Coordinates) -> Scalar:
            condition: Scalar | None = None
            out = []
            for n in range(rank):
                padded = plus(place[n], windows.padding[n])
                window = minus(quotient(padded, windows.stride[n]), back[n])
                out.append(window)
                for test in _window_tests(windows, n, reach[n], padded, window):
                    condition = test if condition is None else apply("and", condition, test)
            value = share(lead, tuple(out), place)
            return value if condition is None else Guarded(condition, value, literal(0, dtype))

        return fold("sum", element, reach, tuple(range(rank)), False)(())

    return body


def _window_tests(windows: Windows, n: int, reach: int, padded: Any, window: Any) -> list[Scalar]:
    """That the window exists, and reaches the position."""
    kernel, stride, outputs = windows.kernel[n], windows.stride[n], windows.outputs[n]
    tests = []
    if reach > 1:
        tests.append(apply("ge", as_scalar(window), 0))
    if (windows.sizes[n] - 1 + windows.padding[n]) // stride >= outputs:
        tests.append(apply("lt", as_scalar(window), outputs))
    if reach * stride > kernel:
        offset = minus(padded, times(window, stride))
        tests.append(apply("lt", as_scalar(offset), kernel))
    return tests


def _windows_of(
    call: OperatorCall, grad: Value, rank: int, kernel: Any, stride: Any, padding: Any
) -> Windows | None:
    shape = call.output().shape
    sizes, outputs = shape[-rank:], call.shape_of(grad)[-rank:]
    if not all(isinstance(size, int) for size in (*sizes, *outputs)) or 0 in shape:
        return None
    kernel = per_dim(kernel, rank)
    return Windows(
        tuple(int(size) for size in sizes),  # type: ignore[arg-type]
        kernel,
        per_dim(stride, rank) if stride not in ([], ()) else kernel,
        per_dim(padding, rank),
        (1,) * rank,
        tuple(int(size) for size in outputs),  # type: ignore[arg-type]
    )


def _avg_pool_backward(rank: int) -> Any:
    def lower(
        call: OperatorCall,
        grad_output: Value,
        self: Value,
        kernel_size: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Lowered:
        windows = _windows_of(call, grad_output, rank, kernel_size, stride, padding)
        dtype = call.compute_dtype
        if windows is None or not dtype.is_floating_point:
            return None

        def share(lead: Coordinates, out: Coordinates, place: Coordinates) -> Scalar:
            gradient = call.read(grad_output, (*lead, *out), dtype)
            if divisor_override is not None:
                return divide(gradient, float(divisor_override))
            number = window_count(windows, out, count_include_pad)
            return divide(gradient, cast(index(number), dtype))

        return _gathered(call, windows, share)

    return lower


def _adaptive_avg_pool_backward(rank: int) -> Any:
    """Only where the windows divide the input evenly."""

    def lower(call: OperatorCall, grad_output: Value, self: Value) -> Lowered:
        shape, outputs = call.output().shape[-rank:], call.shape_of(grad_output)[-rank:]
        if not all(isinstance(size, int) and size for size in (*shape, *outputs)):
            return None
        factors = []
        for size, output in zip(shape, outputs, strict=True):
            if size % output:  # type: ignore[operator]
                return None
            factors.append(size // output)  # type: ignore[operator]
        number = 1
        for factor in factors:
            number *= factor
        dtype = call.compute_dtype

        def body(at: Coordinates) -> Scalar:
            out = (quotient(c, f) for c, f in zip(at[-rank:], factors, strict=True))
            return divide(call.read(grad_output, (*at[:-rank], *out), dtype), float(number))

        return body

    return lower


def _upsample_nearest_backward(rank: int) -> Any:
    """Only for whole factors: each input position sums the block that was made of it."""

    def lower(
        call: OperatorCall, grad_output: Value, output_size: Any, input_size: Any, *scales: Any
    ) -> Lowered:
        shape, outputs = call.output().shape[-rank:], call.shape_of(grad_output)[-rank:]
        if not all(isinstance(size, int) and size for size in (*shape, *outputs)):
            return None
        factors = []
        for size, output in zip(shape, outputs, strict=True):
            if output % size or output // size not in (1, 2, 4, 8):  # type: ignore[operator]
                return None
            factors.append(output // size)  # type: ignore[operator]
        if any(scale is not None and scale not in factors for scale in scales):
            return None
        dtype = call.compute_dtype

        def body(at: Coordinates) -> Scalar:
            def element(k: Coordinates) -> Scalar:
                moved = zip(at[-rank:], k, factors, strict=True)
                point = (plus(times(c, f), inner) for c, inner, f in moved)
                return call.read(grad_output, (*at[:-rank], *point), dtype)

            return fold("sum", element, factors, tuple(range(rank)), False)(())

        return body

    return lower


def _register() -> None:
    for rank in (2, 3):
        add_rule(f"avg_pool{rank}d_backward", _avg_pool_backward(rank), exact=False)
        add_rule(
            f"_adaptive_avg_pool{rank}d_backward", _adaptive_avg_pool_backward(rank), exact=False
        )
    for rank in (1, 2, 3):
        add_rule(f"upsample_nearest{rank}d_backward", _upsample_nearest_backward(rank), exact=False)


_register()
