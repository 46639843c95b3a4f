"""How guards say what differs."""

from __future__ import annotations

from typing import Any

from braze.ir.guard import Guard


def short_text(value: Any) -> str:
    """A value's text, cut at 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def mismatch(guard: Guard, what: str, expected: Any, actual: Any) -> str:
    """The sentence that all of them share."""
    return f"'{guard.source}' {what} mismatch. expected {expected}, actual {actual}"
