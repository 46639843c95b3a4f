"""One guard as the line that explain and the logs show.

model.py:12 L['x'] is f32[10, 3][3, 1]cpu, requires_grad=False
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.ir.guard import Guard, TensorFacts
from braze.ir.origin import UNKNOWN
from braze.ir.types import DTYPE_NAMES

# Entries of a gathered guard that are shown.
SHOWN_NAMES = 6
SHOWN_CHARACTERS = 120


def format_guard(guard: Guard) -> str:
    """`file:line kind source: expected`."""
    place = "" if guard.origin is UNKNOWN else f"{guard.origin.file}:{guard.origin.line} "
    source = "" if guard.source is None else f" {guard.source}"
    expected = _format_expected(guard.expected)
    return (
        f"{place}{guard.kind.value}{source}: {expected}"
        if expected
        else (f"{place}{guard.kind.value}{source}")
    )


def _format_expected(expected: Any) -> str:
    if expected is None:
        return ""
    if isinstance(expected, TensorFacts):
        return _format_facts(expected)
    if isinstance(expected, frozenset):
        return _shortened(sorted(map(str, expected)))
    if isinstance(expected, tuple) and expected and all(isinstance(e, tuple) for e in expected):
        return _shortened([_name_of(entry[0]) for entry in expected if entry])
    if isinstance(expected, torch.nn.Module):
        return type(expected).__qualname__  # its repr prints the whole tree
    text = getattr(expected, "__qualname__", None) or repr(expected)
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def _shortened(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return ", ".join(names[:SHOWN_NAMES]) + more


def _name_of(value: Any) -> str:
    return getattr(value, "__qualname__", None) or str(value)


def _format_facts(facts: TensorFacts) -> str:
    shape = ", ".join("?" if size is None else str(size) for size in facts.shape)
    stride = ", ".join("?" if step is None else str(step) for step in facts.stride)
    dtype = DTYPE_NAMES.get(facts.dtype, str(facts.dtype))
    grad = ", requires_grad" if facts.requires_grad else ""
    return f"{facts.tensor_class.__name__} {dtype}[{shape}][{stride}]{facts.device}{grad}"
