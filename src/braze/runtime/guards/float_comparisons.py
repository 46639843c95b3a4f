"""Guards on how a float compares: `L['self'].p > 0`, whatever the float is."""

from __future__ import annotations

import operator

from braze.ir.captured.guard import Guard
from braze.runtime.guards.codegen import SourceWriter
from braze.runtime.guards.messages import Values

_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def write_comparison(writer: SourceWriter, guard: Guard) -> str:
    """The text of a comparison that gives the same answer."""
    name, other, answer = guard.expected
    text = f"{writer.read(guard.source)} {_SIGNS[name]} {writer.constant(other)}"
    return text if answer else f"not {text}"


def explain_comparison(guard: Guard, value: object, others: Values) -> str | None:
    """How the float compares otherwise; None where it does not."""
    name, other, answer = guard.expected
    if getattr(operator, name)(value, other) is answer:
        return None
    question = f"'{guard.source}' {_SIGNS[name]} {other!r}"
    return f"{question} mismatch. expected {answer}, actual {not answer}: it is {value!r}"
