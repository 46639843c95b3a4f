"""Functions by which a program says what holds of its numbers; private names of torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NAMES = ("_check", "_check_value", "_check_index", "_check_type", "_check_not_implemented")

# function(condition, message): an error where the condition does not hold.
CHECKS: tuple[Callable[..., Any], ...] = tuple(
    [getattr(torch, name) for name in _NAMES if hasattr(torch, name)]
)
# function(condition, message), as exported programs state what they were exported for.
ASSERTIONS: tuple[Callable[..., Any], ...] = tuple(
    [getattr(torch, name) for name in ("_assert",) if hasattr(torch, name)]
)
# function(number, message, *, max): an error where the number can be no size.
SIZE_CHECKS: tuple[Callable[..., Any], ...] = tuple(
    [getattr(torch, name) for name in ("_check_is_size",) if hasattr(torch, name)]
)
