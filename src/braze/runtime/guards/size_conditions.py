"""Guards on relations between sizes: `2 <= L['x'].size()[0]`, `L['x'].size()[0] == L['n']`."""

from __future__ import annotations

from braze.ir.captured.guard import Guard, SizeCondition
from braze.runtime.guards.codegen import SourceWriter
from braze.runtime.guards.messages import Values
from braze.shapes.binding import python_text
from braze.shapes.expr import Expr, Extremum, FloorDiv, Mod, constant_value
from braze.shapes.substitution import evaluate


def write_condition(writer: SourceWriter, guard: Guard) -> str:
    """The text of a condition that holds while the relation does."""
    condition: SizeCondition = guard.expected
    names = {symbol: writer.read(source) for symbol, source in condition.sources}
    value = python_text(condition.expr, names)
    divisors = [f"({python_text(divisor, names)}) != 0" for divisor in _divisors(condition.expr)]
    return " and ".join([*divisors, _compared(condition, value)])


def _compared(condition: SizeCondition, value: str) -> str:
    if condition.apart:
        return f"{value} != 0"
    if condition.lower == condition.upper:
        return f"{value} == {condition.lower}"
    start = "" if condition.lower is None else f"{condition.lower} <= "
    return f"{start}{value}" + ("" if condition.upper is None else f" <= {condition.upper}")


def explain_condition(guard: Guard, value: object, others: Values) -> str | None:
    """How the relation does not hold, with the numbers in it; None where it does."""
    condition: SizeCondition = guard.expected
    values = {symbol: number for (symbol, _), number in zip(condition.sources, others)}
    if any(evaluate(divisor, values) == 0 for divisor in _divisors(condition.expr)):
        return f"{condition} does not hold: it divides by a size of zero"
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


def _divisors(expr: Expr) -> list[Expr]:
    """What the expression divides by, other than numbers: a call may bring sizes of zero. Those
    inside come first."""
    found: dict[Expr, None] = {}
    for monomial, _ in expr.terms:
        for atom in monomial:
            if isinstance(atom, Extremum):
                parts: tuple[Expr, ...] = atom.operands
            elif isinstance(atom, (FloorDiv, Mod)):
                parts = (atom.dividend, atom.divisor)
            else:
                continue
            for part in parts:
                found.update(dict.fromkeys(_divisors(part)))
            if not isinstance(atom, Extremum) and constant_value(atom.divisor) is None:
                found[atom.divisor] = None
    return list(found)
