"""Bytes and seconds as reports write them."""

from __future__ import annotations


def as_bytes(count: float) -> str:
    """`3.2 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def as_time(seconds: float) -> str:
    """`3.2 ms`."""
    if seconds < 1e-4:
        return f"{1e6 * seconds:.1f} us"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
