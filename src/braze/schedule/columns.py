"""Sums over rows, computed where the rows are read for something else.

    kernel a: rows i < 16384: dx[i, r] = ... sums over r of x[i, r] and dy[i, r] ...
    kernel b: rows k < 16, c < 4096 in lanes: part[k, c] = sum over s of dy[1024*k + s, c]
    kernel c: rows c < 4096 in lanes: sum over k < 16 of part[k, c]
becomes
    kernel a: rows i < 16384, 63 a task: dx ...; part[task, r] = sum over its rows of dy[i, r]
    kernel c: ... sum over k < 261 of part[k, c]

The backward of a normalisation reads its inputs once this way. Both kernels must run over the same
rows and points, rows must be short enough for registers, and b must not depend on a.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from braze.frozen import frozen
from braze.ir.loops import Buffer, Load, Scalar
from braze.ir.scalars import cast, loads, rebuild, replace_children, substitute_symbols
from braze.ir.schedule import Accumulate, Column, Kernel, Step, Store
from braze.schedule.in_place import Rewritten
from braze.schedule.memory import may_move, memory_of, written
from braze.schedule.normalise import Names
from braze.shapes.expr import Symbol, as_expr, constant_value, floor_div, modulo

_WIDEST_ROW = 8192
_LEAST_BLOCK = 8  # rows of a task


def merge_columns(final: Rewritten, names: Names, tasks: int) -> Rewritten:
    """The steps with as many such sums merged as can be, over about so many tasks."""
    while True:
        merged = _merged_once(final, names, tasks)
        if merged is None:
            return final
        final = merged


# --- private ---------------------------------------------------------------------------------


@frozen
class _Partial:
    """One of b's sums: its buffer [parts, points], and the sum over b's symbols."""

    target: Buffer
    fold: Accumulate


def _merged_once(final: Rewritten, names: Names, tasks: int) -> Rewritten | None:
    steps = final.steps
    for b, second in enumerate(steps):
        partials = _partials(second)
        if not isinstance(second, Kernel) or not partials:
            continue
        for a, first in enumerate(steps):
            if a == b or (a < final.settled) != (b < final.settled):
                continue
            if not isinstance(first, Kernel) or not _match(first, second, tasks):
                continue
            if not may_move(steps, min(a, b), max(a, b)):
                continue
            made = _with_columns(first, second, partials, names, tasks)
            totals = _totals(steps, made, {p.target for p in partials})
            if totals is None:
                continue
            kernel, _ = made
            rest = [totals.get(n, step) for n, step in enumerate(steps)]
            rest[min(a, b)] = kernel
            del rest[max(a, b)]
            settled = final.settled - (max(a, b) < final.settled)
            return replace(final, steps=tuple(rest), settled=settled)
    return None


def _partials(step: Step) -> list[_Partial]:
    """The sums of a kernel that computes nothing but parts of sums over rows."""
    if not isinstance(step, Kernel) or not step.lanes or len(step.rows) != 2:
        return []
    if len(step.phases) != 1 or len(step.phases[0].loops) != 1:
        return []
    (phase,) = step.phases
    folds = {s.target: s for s in phase.body if isinstance(s, Accumulate) and s.kind == "sum"}
    at = tuple(as_expr(symbol) for symbol, _ in step.rows)
    found = []
    for store in phase.row:
        fold = folds.get(store.value.buffer) if isinstance(store.value, Load) else None
        if fold is None or store.coordinates != at:
            return []
        found.append(_Partial(store.target, fold))
    return found if len(found) == len(phase.body) else []


def _match(first: Kernel, second: Kernel, tasks: int) -> bool:
    """Whether both run over the same rows and points, and read the same."""
    inner = first.phases[0].loops
    if first.lanes or first.chunks or len(first.rows) != 1 or len(inner) != 1:
        return False
    if not any(isinstance(s, Accumulate) for phase in first.phases for s in phase.body):
        return False
    rows, points = constant_value(first.rows[0][1]), constant_value(inner[0][1])
    (_, parts), (_, columns) = second.rows
    ((_, part),) = second.phases[0].loops
    if rows is None or points is None or rows < _LEAST_BLOCK * tasks or points > _WIDEST_ROW:
        return False
    covered = (constant_value(parts) or 0) * (constant_value(part) or 0)
    if constant_value(columns) != points or not rows <= covered < rows + (
        constant_value(part) or 0
    ):
        return False
    large = {b for b in first.memory if b in second.memory and len(b.shape) > 1}
    return bool(large - set(written(first)))


def _with_columns(
    first: Kernel, second: Kernel, partials: Sequence[_Partial], names: Names, wanted: int
) -> tuple[Kernel, dict[Buffer, Buffer]]:
    """The first kernel with the second's sums; the second's buffers -> the new ones."""
    (row, size), ((point, points),) = first.rows[0], first.phases[0].loops
    rows = constant_value(size) or 0
    block = first.block or -(-rows // wanted)
    tasks = -(-rows // block)
    (part, _), (column, _) = second.rows
    ((inner, length),) = second.phases[0].loops
    places = {
        part: floor_div(as_expr(row), length),
        inner: modulo(as_expr(row), length),
        column: as_expr(point),
    }
    columns, moved = [], {}
    for partial in partials:
        fold = partial.fold
        target = names.buffer(partial.target, (tasks, points), dtype=fold.dtype)
        moved[partial.target] = target
        body = substitute_symbols(cast(fold.body, fold.dtype), places)
        columns.append(Column(target, fold.dtype, body))
    others = [b for b in second.memory if b not in moved]
    memory = tuple(dict.fromkeys([*first.memory, *others, *moved.values()]))
    made = replace(first, memory=memory, columns=(*first.columns, *columns), block=block)
    return made, moved


def _totals(
    steps: Sequence[Step],
    made: tuple[Kernel, Mapping[Buffer, Buffer]],
    partials: set[Buffer],
) -> dict[int, Step] | None:
    """The kernels that add up the partial sums, over the new parts; None where one does more."""
    kernel, moved = made
    tasks = -(-(constant_value(kernel.rows[0][1]) or 0) // kernel.block)
    found: dict[int, Step] = {}
    for number, step in enumerate(steps):
        if not partials & {*memory_of(step)} or partials & {*written(step)}:
            continue
        if not isinstance(step, Kernel) or len(step.phases) != 1 or len(step.phases[0].loops) != 1:
            return None
        ((symbol, _),) = step.phases[0].loops
        if not all(_adds_up(s, symbol, partials) for s in step.phases[0].body):
            return None
        found[number] = _over(step, symbol, tasks, moved)
    return found


def _adds_up(statement: Store | Accumulate, symbol: Symbol, partials: set[Buffer]) -> bool:
    """Whether a statement folds nothing but partial sums over their parts."""
    if not isinstance(statement, Accumulate) or statement.kind != "sum":
        return False
    read = list(loads(statement.body))
    return (
        len(read) == 1 and read[0].buffer in partials and read[0].coordinates[0] == as_expr(symbol)
    )


def _over(step: Kernel, symbol: Symbol, tasks: int, moved: Mapping[Buffer, Buffer]) -> Kernel:
    """The kernel with its loop over `tasks` parts in new buffers."""
    longer = Symbol(symbol.name, 0, tasks - 1)

    def replaced(node: Scalar, below: object) -> Scalar:
        if isinstance(node, Load) and node.buffer in moved:
            node = replace(node, buffer=moved[node.buffer])
        return replace_children(node, below)  # type: ignore[arg-type]

    (phase,) = step.phases
    body = []
    for statement in phase.body:
        assert isinstance(statement, Accumulate)
        moved_body = substitute_symbols(
            rebuild(statement.body, replaced), {symbol: as_expr(longer)}
        )
        body.append(replace(statement, body=moved_body))
    memory = tuple(dict.fromkeys(moved.get(b, b) for b in step.memory))
    loops = ((longer, tasks),)
    return replace(step, phases=(replace(phase, loops=loops, body=tuple(body)),), memory=memory)
