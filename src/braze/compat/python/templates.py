"""Template strings (Python 3.14): `t"..."` makes a Template of texts and Interpolations."""

from __future__ import annotations

import importlib
from typing import Any

from braze.compat.python.opcodes import OPCODES

_CONVERSIONS = (None, "s", "r", "a")
_LIBRARY: Any = (
    importlib.import_module("string.templatelib") if "BUILD_TEMPLATE" in OPCODES else None
)


def interpolation(value: object, expression: str, conversion: int, format_spec: str) -> Any:
    """An Interpolation; conversion: as the compiler numbers them, 0 for none."""
    return _LIBRARY.Interpolation(value, expression, _CONVERSIONS[conversion], format_spec)


def template(texts: tuple[str, ...], interpolations: tuple[Any, ...]) -> object:
    """A Template: the texts, and what stands between each and the next."""
    parts = [texts[0]]
    for found, text in zip(interpolations, texts[1:]):
        parts += (found, text)
    return _LIBRARY.Template(*parts)
