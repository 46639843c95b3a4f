"""Hoists the range checks of indices above operators with side effects.

    call lib::send(b0)                       b9[i0] = in_range(b1[i0], 8)
    b4[i0] = b2[in_range(b1[i0], 8)]   ->    call lib::send(b0)
                                             b4[i0] = b2[in_range(b1[i0], 8)]

A frame whose kernel meets a bad index is run eagerly, which words the error and leaves the state of
eager. Behind an operator whose effects nobody can take back that cannot be. An index that a
condition guards (the classes of a loss, beside `ignore_index`) is checked where that holds.
Refused: indices, and conditions, that are not known before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from braze.ir.graphs.op_effects import is_irrevocable
from braze.ir.kernels.loops import (
    Buffer,
    Definition,
    ExternCall,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    LoopProgram,
    Reduce,
    Scalar,
    Statement,
)
from braze.ir.kernels.scalars import children, loads, substitute_symbols, walk
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import Expr, Symbol, as_expr, symbols


def check_early(
    program: LoopProgram, statements: Sequence[Statement], names: Names
) -> tuple[list[Statement], frozenset[Buffer]]:
    """The statements, with checks before the first operator with effects; what the checks make."""
    first = next((n for n, s in enumerate(statements) if _acts(s)), len(statements))
    before, later = statements[:first], statements[first:]
    known = {*program.inputs, *(buffer for buffer, _ in program.constants)}
    known.update(*map(_made, before))
    changed = {buffer for statement in later for buffer in _made(statement)}
    checks: dict[Scalar, Definition] = {}
    for statement in later:
        if isinstance(statement, Definition):
            for index in _checked(statement.body):
                if {load.buffer for load in loads(index)} <= known - changed:
                    checks.setdefault(index, _check(statement, index, names))
    made = frozenset([check.target for check in checks.values()])
    return [*before, *checks.values(), *later], made


def symbols_in(scalar: Scalar) -> set[Symbol]:
    """The symbols that a scalar's value depends on."""
    found: set[Symbol] = set()
    for node in walk(scalar):
        if isinstance(node, Index):
            found |= symbols(node.expr)
        elif isinstance(node, Load):
            for coordinate in node.coordinates:
                if isinstance(coordinate, Expr):
                    found |= symbols(coordinate)
    return found


_UNCHECKED = Literal(0, torch.int64)


# --- private ---------------------------------------------------------------------------------


def _acts(statement: Statement) -> bool:
    return isinstance(statement, ExternCall) and is_irrevocable(statement.op)


def _made(statement: Statement) -> Iterator[Buffer]:
    if isinstance(statement, Definition):
        yield statement.target
    else:
        yield from (buffer for buffer in statement.outputs if buffer is not None)


def _checked(body: Scalar) -> Iterator[Scalar]:
    """The indices that are checked, each inside of the conditions that guard it."""
    pending: list[tuple[Scalar, tuple[Guarded, ...]]] = [(body, ())]
    while pending:
        scalar, guards = pending.pop()
        if isinstance(scalar, Guarded):
            pending.append((scalar.condition, guards))
            pending.append((scalar.other, (*guards, replace(scalar, value=_UNCHECKED))))
            pending.append((scalar.value, (*guards, replace(scalar, other=_UNCHECKED))))
            continue
        if isinstance(scalar, InRange):
            check: Scalar = scalar
            for guard in reversed(guards):
                place = "other" if guard.value is _UNCHECKED else "value"
                check = replace(guard, **{place: check})
            yield check
        pending.extend((below, guards) for below in children(scalar))


def _check(definition: Definition, index: Scalar, names: Names) -> Definition:
    folded = [axis for n in walk(definition.body) if isinstance(n, Reduce) for axis in n.axes]
    used = symbols_in(index)
    axes = [axis for axis in (*definition.axes, *folded) if axis[0] in used]
    shape = tuple([size for _, size in axes])
    fresh = {symbol: names.symbol("p", size) for symbol, size in axes}
    own = tuple([(fresh[symbol], size) for symbol, size in axes])
    body = substitute_symbols(index, {old: as_expr(new) for old, new in fresh.items()})
    target = names.buffer(definition.target, shape, dtype=index.dtype)
    store = tuple([as_expr(symbol) for symbol, _ in own])
    return Definition(target, own, store, body, definition.origin)
