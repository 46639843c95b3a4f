"""Gradients of pooling, as gathers: each input position folds over the windows that it lies in, so
that no element is written twice. The gradient of a maximum goes to one position of its window: on
the CPU ATen's scatter of it takes a tenth of the time of a gather; on a GPU it is a gather, too."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Guarded, Scalar
from braze.ir.kernels.scalars import apply, cast, index, literal
from braze.lower.coordinates import (
    Coordinates,
    as_scalar,
    minus,
    plus,
    product,
    quotient,
    ravel,
    times,
)
from braze.lower.formulas import divide
from braze.lower.lowering import OperatorCall
from braze.lower.operators.pooling import Windows, make_windows, per_dim, window_count
from braze.lower.operators.reductions import fold
from braze.lower.rules import Body, Lowered, add_rule
from braze.shapes.expr import constant_value, floor_div, modulo, simplified

# Windows that one position may lie in, beyond which ATen's scatter is the better program.
_MOST_WINDOWS = 25
_GATHERING = frozenset({"cuda"})  # devices on which gradients of maxima are gathered


def _gathered(
    call: OperatorCall,
    windows: Windows,
    share: Callable[[Coordinates, Coordinates, Coordinates], Scalar],
) -> Body | None:
    """Sum of `share(lead, window, position)` over the windows that hold a position."""
    rank = len(windows.kernel)
    pairs: Any = list(zip(windows.kernel, windows.stride, strict=True))
    if not all(isinstance(size, int) for pair in pairs for size in pair):
        return None
    reach = tuple(-(-kernel // stride) for kernel, stride in pairs)
    if math.prod(reach) > _MOST_WINDOWS:
        return None
    spans = zip(windows.outputs, windows.stride, windows.sizes, windows.padding, strict=True)
    covered = [call.is_nonnegative(n * step - size - pad) for n, step, size, pad in spans]
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
                if not covered[n]:
                    condition = _both(condition, apply("lt", as_scalar(window), windows.outputs[n]))
                for test in _window_tests(windows, n, reach[n], padded, window):
                    condition = _both(condition, test)
            value = share(lead, tuple(out), place)
            return value if condition is None else Guarded(condition, value, literal(0, dtype))

        return fold("sum", element, reach, tuple(range(rank)), False)(())

    return body


def _both(condition: Scalar | None, test: Scalar) -> Scalar:
    return test if condition is None else apply("and", condition, test)


def _window_tests(windows: Windows, n: int, reach: int, padded: Any, window: Any) -> list[Scalar]:
    """That the window is not before the first, and reaches the position."""
    kernel, stride = windows.kernel[n], windows.stride[n]
    tests = []
    if reach > 1:
        tests.append(apply("ge", as_scalar(window), 0))
    if reach * stride > kernel:
        offset = minus(padded, times(window, stride))
        tests.append(apply("lt", as_scalar(offset), kernel))
    return tests


def _avg_pool_backward(rank: int) -> Any:
    def lower(
        call: OperatorCall,
        grad_output: Value,
        self: Value,
        kernel_size: object,
        stride: object,
        padding: object,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor_override: int | None,
    ) -> Lowered:
        outputs = call.shape_of(grad_output)[-rank:]
        shape = call.output().shape
        windows = make_windows(call, shape, outputs, kernel_size, stride, padding)
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


def _max_pool_backward(
    call: OperatorCall,
    grad_output: Value,
    self: Value,
    kernel_size: object,
    stride: object,
    padding: object,
    dilation: object,
    ceil_mode: bool,
    indices: Value,
) -> Lowered:
    """Each position asks the windows that it lies in whether it was their maximum."""
    if call.device_of(self).type not in _GATHERING or set(per_dim(dilation, 2)) != {1}:
        return None
    outputs, dtype = call.shape_of(grad_output)[-2:], call.compute_dtype
    windows = make_windows(call, call.output().shape, outputs, kernel_size, stride, padding)
    if windows is None or not dtype.is_floating_point:
        return None

    def share(lead: Coordinates, out: Coordinates, place: Coordinates) -> Scalar:
        found = call.read(indices, (*lead, *out), torch.int64)
        here = apply("eq", found, as_scalar(ravel(place, windows.sizes)))
        gradient = call.read(grad_output, (*lead, *out), dtype)
        return apply("where", here, gradient, literal(0, dtype))

    return _gathered(call, windows, share)


def _adaptive_avg_pool_backward(rank: int) -> Any:
    """Only where the windows divide the input evenly."""

    def lower(call: OperatorCall, grad_output: Value, self: Value) -> Lowered:
        shape, outputs = call.output().shape[-rank:], call.shape_of(grad_output)[-rank:]
        if 0 in (*shape, *outputs):
            return None
        pairs = list(zip(shape, outputs, strict=True))
        if any(constant_value(modulo(size, output)) != 0 for size, output in pairs):
            return None
        factors = [simplified(floor_div(size, output)) for size, output in pairs]
        number = product(factors)
        dtype = call.compute_dtype

        def body(at: Coordinates) -> Scalar:
            out = (quotient(c, f) for c, f in zip(at[-rank:], factors, strict=True))
            return divide(
                call.read(grad_output, (*at[:-rank], *out), dtype), literal(number, dtype)
            )

        return body

    return lower


def _register() -> None:
    add_rule("max_pool2d_with_indices_backward", _max_pool_backward, exact=False)
    for rank in (2, 3):
        add_rule(f"avg_pool{rank}d_backward", _avg_pool_backward(rank), exact=False)
        add_rule(
            f"_adaptive_avg_pool{rank}d_backward", _adaptive_avg_pool_backward(rank), exact=False
        )


_register()
