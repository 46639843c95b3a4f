"""Bytes, seconds and places as reports write them."""

from __future__ import annotations

import re


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


def short_places(text: str) -> str:
    """The text with `torch/optim/adam.py:475` where it names a file of an installed package."""
    return _PACKAGES.sub("", text)


# --- private ---------------------------------------------------------------------------------

_PACKAGES = re.compile(r"(?<![\w/.])/[^\s:'\"]*/(?:site|dist)-packages/")
