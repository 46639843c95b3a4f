"""Schedules convolutions of channels-last images as implicit matrix products.

    b2 = aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
is, over m = (image, row, column) of the result and k = (window's row, its column, channel),
    first[m, k] = x[image, channel, row - 1 + window's row, column - 1 + window's column], or 0
    second[k, n] = w[n, channel, window's row, window's column]
    b2 as [m, n] = first @ second

The second matrix is the weight's memory, channels innermost. The first one is gathered: in memory
it is the image, but for windows of one element next to each other, of which it is the memory, too.
A bias is added to the rounded result, as the library does.

Refused: transposed convolutions, groups, one or three dimensions of places, other layouts, channels
that are not read 16 bytes at a time, symbols among the sizes, and float32 where it is not cuDNN
that computes them: its precision is not known then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, final

import torch

from braze.compat.torch.ambient_state import convolution_precision
from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, Guarded, Literal, Load, Scalar
from braze.ir.kernels.scalars import apply, index
from braze.ir.kernels.schedule import ComputedMatrix, Precision
from braze.ir.types import Size
from braze.schedule.matmul.matmul_kernel import DTYPES, Operands, is_plain
from braze.shapes.expr import Expr, Symbol, as_expr, bounds, constant_value, floor_div, modulo

_READ = 16  # bytes that a thread reads at once
_LEAST_CHANNELS = 16  # a step of matrix units


def convolution_operands(call: ExternCall) -> Operands | str | None:
    """The operands of a convolution as a product, or why it is left to the library; None for any
    other call."""
    if call.op._schema.name != "aten::convolution" or call.kwargs or call.outputs[0] is None:
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args
    views = [x, weight, *([bias] if bias is not None else [])]
    if not all(type(view) is BufferView for view in views):
        return None
    if transposed or groups != 1 or len(x.shape) != 4:
        return "it is transposed, of groups, or not over rows and columns"
    numbers = [constant_value(n) for n in (*stride, *padding, *dilation)]
    if None in numbers or not all(is_plain(v, x) for v in views) or not _is_known(call.outputs[0]):
        return "its sizes are not known, or its operands' dtypes not alike"
    found = _Convolution(x, weight, call.outputs[0], *map(tuple, (stride, padding, dilation)))
    reason = found.refused()
    return reason or found.operands(bias)


# --- private ---------------------------------------------------------------------------------


@final
@frozen
class _Convolution:
    """An image and a weight of four dimensions, and the result."""

    image: BufferView
    weight: BufferView
    target: Buffer
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def channels(self) -> int:
        """Those of the image."""
        return _number(self.image.shape[1])

    @property
    def window(self) -> tuple[int, ...]:
        """Its extents."""
        return _numbers(self.weight.shape[2:])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(m, n, k) of the product."""
        images, n, *places = _numbers(self.target.shape)
        return images * math.prod(places), n, math.prod(self.window) * self.channels

    @property
    def precision(self) -> Precision | None:
        """What the library multiplies in; None where that is not known."""
        return convolution_precision() if self.image.dtype == torch.float32 else "ieee"

    def refused(self) -> str:
        """Why it is left to the library; nothing where it is not."""
        bytes_ = self.channels * self.image.dtype.itemsize
        if self.image.dtype not in DTYPES or min(self.sizes) < 1:
            return f"of {self.image.dtype}, or empty"
        if bytes_ % _READ or self.channels < _LEAST_CHANNELS:
            return f"{self.channels} channels are not read {_READ} bytes at a time"
        if not _is_dense(self.target.shape, self.target.stride):
            return "its result is not channels-last"
        if constant_value(self.image.stride[1]) != 1 or _start(self.image) is None:
            return "its image is not channels-last"
        if _columns(self.weight) is None:
            return "its weight is not channels-last"
        if self.precision is None:
            return "the library's precision is not known"
        return ""

    def operands(self, bias: BufferView | None) -> Operands:
        """Those of the product."""
        m, n, k = self.sizes
        second, precision = _columns(self.weight), self.precision
        assert second is not None and precision is not None
        first, computed = self._rows(), None
        if first is None:
            first = BufferView(self.image.buffer, (m, k), (k, 1), 0, self.image.dtype)
            computed = self._gathered(m, k)
        return Operands(
            first, second, bias, 1, m, n, (computed, None), precision, adds_to_rounded=True
        )

    def _rows(self) -> BufferView | None:
        """The first matrix where it is the image's memory."""
        is_apart = any(n > 1 for n in self.window) or any(self.padding)
        sizes = _numbers(self.target.shape[2:])
        if is_apart or any(s > 1 and n > 1 for s, n in zip(self.stride, sizes, strict=True)):
            return None
        (images, _, *places), (first, _, *steps) = self.image.shape, self.image.stride
        step = _joined((images, *places), (first, *steps))
        if step is None:
            return None
        m, _, k = self.sizes
        return BufferView(self.image.buffer, (m, k), (step, 1), self.image.offset, self.image.dtype)

    def _gathered(self, m: int, k: int) -> ComputedMatrix:
        """The first matrix by its rows and columns."""
        row, column = Symbol("pr1", 0, m - 1), Symbol("pc1", 0, k - 1)
        image, *places = _unravelled(row, self.target.shape[2:])
        *taps, channel = _unravelled(column, (*self.window[1:], self.channels))
        inner: list[Expr] = []
        inside: Scalar | None = None
        shape = (self.stride, self.padding, self.dilation, self.image.shape[2:])
        for place, tap, step, before, apart, size in zip(places, taps, *shape, strict=True):
            at = place * step - before + tap * apart
            inner.append(at)
            for condition in _within(at, _number(size)):
                inside = condition if inside is None else apply("and", inside, condition)
        start = _start(self.image)
        assert start is not None
        at_ = [a + b for a, b in zip((image, channel, *inner), start, strict=True)]
        value: Scalar = Load(self.image.buffer, tuple(at_))
        if inside is not None:
            value = Guarded(inside, value, Literal(0.0, value.dtype))
        return ComputedMatrix(((row, m), (column, k)), value, gathered=True)


def _within(at: Expr, size: int) -> list[Scalar]:
    """What has to hold for an index to be one of so many, where it may not be."""
    low, high = bounds(at)
    found = []
    if low is None or low < 0:
        found.append(apply("ge", index(at), index(0)))
    if high is None or high >= size:
        found.append(apply("lt", index(at), index(size)))
    return found


def _unravelled(symbol: Symbol, sizes: Sequence[Size]) -> list[Expr]:
    """The indices that a number is made of, of inner loops of these sizes and one outside."""
    rest, found = as_expr(symbol), []
    for size in reversed(sizes):
        found.append(modulo(rest, size))
        rest = floor_div(rest, size)
    return [rest, *reversed(found)]


def _columns(weight: BufferView) -> BufferView | None:
    """The second matrix: the weight's memory, where it lies channels innermost."""
    outputs, channels, *window = weight.shape
    first, inner, *steps = weight.stride
    step = _joined((*window, channels), (*steps, inner))
    if step != 1:
        return None
    k = math.prod(_numbers(weight.shape[1:]))
    return BufferView(weight.buffer, (k, _number(outputs)), (1, first), weight.offset, weight.dtype)


def _joined(shape: Sequence[Size], stride: Sequence[Size]) -> int | None:
    """How far apart the elements of several dimensions are as those of one; None where they are
    not evenly apart."""
    least: int | None = None
    expected = 0
    for size, step in zip(_numbers(shape)[::-1], _numbers(stride)[::-1], strict=True):
        if size == 1:
            continue
        if least is None:
            least = expected = step
        if step != expected:
            return None
        expected *= size
    return 1 if least is None else least


def _is_dense(shape: Sequence[Size], stride: Sequence[Size]) -> bool:
    """Whether memory is an image after the other, row by row, channels innermost."""
    order = (0, *range(2, len(shape)), 1)
    return _joined([shape[d] for d in order], [stride[d] for d in order]) == 1


def _start(view: BufferView) -> tuple[int, ...] | None:
    """The coordinates of the view's first element in the buffer that it is a part of; None where
    it is no part of one."""
    buffer = view.buffer
    if not _is_known(buffer) or len(buffer.shape) != len(view.shape):
        return None
    if _numbers(view.stride) != _numbers(buffer.stride):
        return None
    found, rest = [0] * len(view.shape), _number(view.offset)
    for dim in sorted(range(len(found)), key=lambda dim: -_number(buffer.stride[dim])):
        size, step = _number(buffer.shape[dim]), _number(buffer.stride[dim])
        if size > 1 and step:
            found[dim], rest = divmod(rest, step)
        if found[dim] + _number(view.shape[dim]) > size:
            return None
    return tuple(found) if rest == 0 else None


def _is_known(buffer: Buffer) -> bool:
    return all(constant_value(n) is not None for n in (*buffer.shape, *buffer.stride))


def _numbers(sizes: Sequence[object]) -> tuple[int, ...]:
    return tuple(map(_number, sizes))


def _number(size: Any) -> int:
    found = constant_value(size)
    assert found is not None, size
    return found
