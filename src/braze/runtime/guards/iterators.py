"""Guards on how much a builtin iterator has yet to give."""

from __future__ import annotations

from braze.compat.python.iterator_state import items_left
from braze.ir.captured.guard import Guard
from braze.runtime.guards.codegen import SourceWriter
from braze.runtime.guards.messages import Values


def write_items_left(writer: SourceWriter, guard: Guard) -> str:
    """The text of a condition that holds while enough items, or exactly so many, are left."""
    count, exact = guard.expected
    left = f"{writer.constant(items_left)}({writer.read(guard.source)})"
    return f"{left} {'==' if exact else '>='} {count}"


def explain_items_left(guard: Guard, value: object, others: Values) -> str | None:
    """How many are left instead; None where the guard holds."""
    count, exact = guard.expected
    left = items_left(value)
    if left == count or (left > count and not exact):
        return None
    least = "" if exact else "at least "
    return f"'{guard.source}' items left mismatch. expected {least}{count}, actual {left}"
