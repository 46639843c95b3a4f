"""Moves copies of a library call's results up, right behind the call.

    w, b = conv_backward(...)                 w, b = conv_backward(...)
    ...                                ->     g[i, j] = w[i, j]
    g[i, j] = w[i, j]                         ...

Where a library's layout is not the one that a result has to have (gradients of the weights of
channels-last convolutions), both would be in memory until the end of a training step.

Left alone: what others read, too, what is small or of symbolic size, and copies larger than what
they copy.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.ir.kernels.loops import Buffer, Definition, ExternCall, Load, LoopProgram, Statement
from braze.ir.kernels.scalars import loads
from braze.schedule.analysis.uses import Uses, find_uses
from braze.schedule.memory.allocate import size_of
from braze.shapes.expr import Expr, constant_value, symbols

_LEAST = 1 << 16  # bytes: below, memory is no matter


def copy_early(program: LoopProgram, statements: Sequence[Statement]) -> list[Statement]:
    """The statements with such copies behind the calls whose results they copy."""
    uses = find_uses(program, statements)
    results = {view.buffer for view in program.outputs}
    made = {b for s in statements if isinstance(s, ExternCall) for b in s.outputs if b is not None}
    early: dict[Buffer, Definition] = {}
    for statement in statements:
        if isinstance(statement, Definition) and statement.target in results:
            copied = _copied(statement)
            if (
                copied in made
                and _goes(copied, uses)
                and uses.is_single_definition(statement.target)
            ):
                early[copied] = statement
    moved = {*early.values()}
    ordered: list[Statement] = []
    for statement in statements:
        if statement not in moved:
            ordered.append(statement)
        if isinstance(statement, ExternCall):
            ordered += [early[b] for b in statement.outputs if b in early]
    return ordered


# --- private ---------------------------------------------------------------------------------


def _copied(definition: Definition) -> Buffer | None:
    """The large buffer that the definition copies, wholly or in part."""
    body = definition.body
    if not isinstance(body, Load) or len(list(loads(body))) > 1:
        return None
    size, copied = (constant_value(size_of(b)) for b in (definition.target, body.buffer))
    if size is None or copied is None or not _LEAST <= size <= copied:
        return None
    own = {symbol for symbol, _ in definition.axes}
    plain = all(isinstance(at, Expr) and symbols(at) <= own for at in body.coordinates)
    return body.buffer if plain else None


def _goes(buffer: Buffer, uses: Uses) -> bool:
    """Whether one definition is all that reads a buffer."""
    return len(uses.readers(buffer)) == 1 and not uses.is_needed_outside(buffer)
