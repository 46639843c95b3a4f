"""Programs as NumPy's own guides have them: one graph each, of few kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.unit.capture.test_numpy import ARRAY, judge


def nearest_means(points: Any, means: Any) -> Any:
    return np.argmin(np.linalg.norm(points - means[:, None], axis=2), axis=0)


def facts() -> Any:
    a = np.arange(15).reshape(3, 5)
    return a, a.shape, a.ndim, a.dtype.name, a.itemsize, a.size


def products() -> Any:
    first, second = np.array([[1, 1], [0, 1]]), np.array([[2, 0], [3, 4]])
    return first * second, first @ second, first.dot(second)


def along_axes() -> Any:
    b = np.arange(12).reshape(3, 4)
    return b.sum(axis=0), b.min(axis=1), b.cumsum(axis=1)


def one_dimension() -> Any:
    a = np.arange(10) ** 3
    a[:6:2] = 1000
    return a[2], a[2:5], a[::-1], a, [i ** (1 / 3.0) for i in a]


def stacked(a: Any) -> Any:
    shapes = a.ravel(), a.reshape(6, 4), a.T, a.T.shape
    return shapes, np.vstack((a, a)), np.hstack((a, a)), np.column_stack((a, a)), np.hsplit(a, 2)


def by_arrays() -> Any:
    a = np.arange(12) ** 2
    return a[np.array([1, 1, 3, 8, 5])], a[np.array([[3, 4], [9, 7]])]


def by_truths() -> Any:
    a = np.arange(12).reshape(3, 4)
    b = a > 4
    a[b] = 0
    return a, b


def waves() -> Any:
    return np.sin(np.linspace(0, 2 * np.pi, 100))


def types_in_place() -> Any:
    a, b = np.ones((2, 3), dtype=int), np.zeros((2, 3))
    a *= 3
    b += a
    c = np.exp(b * 1j)
    return a, b, c, c.dtype.name


def mandelbrot() -> Any:
    x, y = np.linspace(-2.5, 1.5, 81), np.linspace(-1.5, 1.5, 61)
    real, imaginary = np.meshgrid(x, y)
    c = real + imaginary * 1j
    z = np.zeros_like(c)
    times = 5 + np.zeros(z.shape, dtype=int)
    for step in range(5):
        z = z**2 + c
        diverges = abs(z) > 2
        times[diverges & (times == 5)] = step
        z[diverges] = 2
    return times


def broadcast() -> Any:
    a, x = np.array([1.0, 2.0, 3.0]), np.array([0.0, 10.0, 20.0, 30.0])
    return a * 2.0, x[:, np.newaxis] + a, np.ones((4, 5, 3)) * a


def nearest_code() -> Any:
    codes = np.array([[102.0, 203.0], [132.0, 193.0], [45.0, 155.0], [57.0, 173.0]])
    return np.argmin(np.sqrt(np.sum((codes - np.array([111.0, 188.0])) ** 2, axis=-1)))


def indexed() -> Any:
    x, y = np.arange(10), np.arange(35).reshape(5, 7)
    rows = np.array([0, 2, 4])
    some = x[2], x[-2], x[1:7:2], y[1:5:2, ::3], x[np.array([3, 3, 1, 8])]
    return some, y[rows, np.array([0, 1, 2])], y[rows, 1], y[1, ...], y[:, None, :]


def without_nans() -> Any:
    x = np.array([[1.0, 2.0], [np.nan, 3.0], [np.nan, np.nan]])
    x[np.isnan(x)] = -1
    z = np.arange(81).reshape(3, 3, 3, 3)
    return x, z[1, 1, 1, 1], z[1, ..., 2]


def types(a: Any) -> Any:
    small = a * np.finfo(a.dtype).eps
    kind = np.issubdtype(a.dtype, np.floating), a.dtype == np.float32, np.dtype("f4")
    return small, kind, np.iinfo(np.int32).max


POINTS = np.random.default_rng(1).normal(size=(100, 2))
# The most kernels that each may be.
GUIDES: list[tuple[Callable[..., Any], tuple[Any, ...], int]] = [
    (nearest_means, (POINTS, POINTS[:3]), 3), (facts, (), 1), (products, (), 1),
    (along_axes, (), 2),
    (one_dimension, (), 2), (stacked, (ARRAY,), 1), (by_arrays, (), 2), (by_truths, (), 1),
    (waves, (), 1), (types_in_place, (), 1), (mandelbrot, (), 6), (broadcast, (), 3),
    (nearest_code, (), 2), (indexed, (), 5), (without_nans, (), 3), (types, (ARRAY,), 1),
]  # fmt: skip


@pytest.mark.parametrize(("function", "args", "most"), GUIDES)
def test_programs_of_guides_are_one_graph(function: Any, args: Any, most: int) -> None:
    found = judge(function, *args)
    assert (found.graph_count, found.break_reasons) == (1, ())
    assert found.records[0].counters["kernels"] <= most
