"""Guards on relations between sizes: `2 <= L['x'].size()[0]`, `L['x'].size()[0] == L['n']`."""

from __future__ import annotations

from typing import Any

from braze.ir.entry import FrameValues
from braze.ir.guard import Guard, SizeCondition
from braze.runtime.source_code import SourceWriter, read_source
from braze.shapes.binding import python_text
from braze.shapes.substitution import evaluate


def write_condition(writer: SourceWriter, guard: Guard) -> str:
    """The text of a condition that holds while the relation does."""
    condition: SizeCondition = guard.expected
    names = {symbol: writer.read(source) for symbol, source in condition.sources}
    value = python_text(condition.expr, names)
    if condition.apart:
        return f"{value} != 0"
    if condition.lower == condition.upper:
        return f"{value} == {condition.lower}"
    start = "" if condition.lower is None else f"{condition.lower} <= "
    return f"{start}{value}" + ("" if condition.upper is None else f" <= {condition.upper}")


def explain_condition(guard: Guard, value: Any, frame: FrameValues) -> str | None:
    """How the relation does not hold, with the numbers in it; None where it does."""
    condition: SizeCondition = guard.expected
    values = {symbol: read_source(source, frame) for symbol, source in condition.sources}
    actual = evaluate(condition.expr, values)
    low, high = condition.lower, condition.upper
    if (
        actual != 0
        if condition.apart
        else not ((low is not None and actual < low) or (high is not None and actual > high))
    ):
        return None
    numbers = ", ".join(f"{source} is {values[symbol]}" for symbol, source in condition.sources)
    return f"{condition} does not hold: {numbers}"
