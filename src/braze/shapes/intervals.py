"""Arithmetic of intervals: (least, greatest) of integers, None for no end."""

from __future__ import annotations

from typing import TypeAlias

Range: TypeAlias = tuple[int | None, int | None]


def multiplied(a: Range, b: Range) -> Range:
    """The range of a product."""
    if a[0] is not None and b[0] is not None and a[0] >= 0 and b[0] >= 0:
        high = None if a[1] is None or b[1] is None else a[1] * b[1]
        return a[0] * b[0], high
    (low, high), (other_low, other_high) = a, b
    if low is None or high is None or other_low is None or other_high is None:
        return None, None
    products = [p * q for p in (low, high) for q in (other_low, other_high)]
    return min(products), max(products)


def scaled(interval: Range, factor: int) -> Range:
    """The range of a multiple."""
    low, high = interval
    scaled_low = None if low is None else low * factor
    scaled_high = None if high is None else high * factor
    return (scaled_low, scaled_high) if factor >= 0 else (scaled_high, scaled_low)


def divided(dividend: Range, divisor: Range) -> Range:
    """The range of the quotient, rounded down, of a divisor that is positive."""
    (low, high), (least, greatest) = dividend, divisor
    least = max(least or 1, 1)
    new_low: int | None = None
    if low is not None:
        new_low = low // least if low < 0 else (0 if greatest is None else low // greatest)
    new_high: int | None = None
    if high is not None:
        new_high = high // least if high >= 0 else (-1 if greatest is None else high // greatest)
    return new_low, new_high
