"""Finishes column sums: adds up the partial sums that the kernel of the rows left
(`schedule/reductions/column_reduction.py`).

    kernel a: rows i < 4096: g[i, r] = ...; y[i, r] = ...; p[task, r], q[task, r] = sums over rows
    kernel b: rows c < 768 in lanes: v[c] = sum over k < 512 of p[k, c]
    kernel c: rows c < 768 in lanes: w[c] = sum over k < 512 of q[k, c]
becomes
    kernel a: rows i < 4096: y[i, r] = ...; p[task, r], q[task, r] = sums over rows
    kernel b: rows c < 768 in lanes: v[c] = sum over k < 512 of p[k, c]; w[c] = ... of q[k, c]

Sums over the same parts are one kernel: each takes longer to start than to run. A value (g) that
nothing but such a sum still reads is not written: its program has it in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from braze.ir.kernels.loops import Buffer, LoopProgram, Scalar
from braze.ir.kernels.scalars import loads, substitute_symbols
from braze.ir.kernels.schedule import (
    Accumulate,
    Kernel,
    Phase,
    Step,
    Store,
    scalar_of,
    statements_of,
)
from braze.schedule.memory.allocate import memory_of, written
from braze.schedule.memory.inplace_inputs import Rewritten
from braze.schedule.memory.step_order import StepPlaces
from braze.shapes.expr import Expr, Symbol, as_expr
from braze.shapes.substitution import substitute


def finish_columns(program: LoopProgram, final: Rewritten) -> Rewritten:
    """The steps with what kernels with columns made possible."""
    final = replace(final, steps=_without_unread(program, final))
    places = StepPlaces(final.steps)
    for step in final.steps:
        if isinstance(step, Kernel) and len(step.columns) > 1:
            _join_totals(places, final.settled, {column.target for column in step.columns})
    return places.rewritten(final)


# --- private ---------------------------------------------------------------------------------


def _without_unread(program: LoopProgram, final: Rewritten) -> tuple[Step, ...]:
    needed = {view.buffer for view in program.outputs}
    needed |= {b for target, view in final.mutations for b in (target, view.buffer)}
    needed |= {*program.inputs, *final.in_place, *(b for b, _ in program.constants)}
    count: dict[Buffer, int] = {}
    for step in final.steps:
        for buffer in {*memory_of(step), *written(step)}:
            count[buffer] = count.get(buffer, 0) + 1
    return tuple(
        _in_registers(step, {b for b in step.memory if count[b] == 1 and b not in needed})
        if isinstance(step, Kernel) and step.columns
        else step
        for step in final.steps
    )


def _in_registers(kernel: Kernel, unread: set[Buffer]) -> Kernel:
    """The kernel without those of the buffers behind pointers that it writes once, and reads at
    that place alone."""
    stores: dict[Buffer, list[Store]] = {}
    read: dict[Buffer, set[tuple[Expr | Scalar, ...]]] = {}
    for part in statements_of(kernel):
        if isinstance(part, Store):
            stores.setdefault(part.target, []).append(part)
        for load in loads(scalar_of(part)):
            read.setdefault(load.buffer, set()).add(load.coordinates)
    for column in kernel.columns:
        for load in loads(column.body):
            read.setdefault(load.buffer, set()).add(load.coordinates)
    gone = {
        buffer
        for buffer in unread & stores.keys()
        if [s.coordinates for s in stores[buffer]] == [*read.get(buffer, ())]
    }
    return replace(kernel, memory=tuple([b for b in kernel.memory if b not in gone]))


def _join_totals(places: StepPlaces, settled: int, targets: set[Buffer]) -> None:
    """Join the steps that add up those partial sums, as many as may be."""
    while True:
        totals = [n for n in places.touching(targets) if _adds_up(places.steps[n], targets)]
        for early, late in pairwise(totals):
            apart = (early < settled) != (late < settled)
            kernel = None if apart else _joined(places, early, late)
            if kernel is not None:
                places.put(late, None)
                places.put(early, kernel)
                break
        else:
            return


def _adds_up(step: Step | None, targets: set[Buffer]) -> bool:
    """Whether a step folds nothing but those buffers over its only loop."""
    if not isinstance(step, Kernel) or not targets & {*step.memory}:
        return False
    if len(step.rows) != 1 or len(step.phases) != 1 or len(step.phases[0].loops) != 1:
        return False
    made = {*written(step)}
    folds = all(isinstance(statement, Accumulate) for statement in step.phases[0].body)
    return folds and not made & targets and {*step.memory} <= made | targets


def _joined(places: StepPlaces, early: int, late: int) -> Kernel | None:
    """Both kernels as one, if they run over the same lanes and parts."""
    first, second = places.steps[early], places.steps[late]
    assert isinstance(first, Kernel) and isinstance(second, Kernel)
    ((row, rows),), ((other, others),) = first.rows, second.rows
    (phase,), (behind,) = first.phases, second.phases
    ((part, parts),), ((along, length),) = phase.loops, behind.loops
    if first.lanes != second.lanes or as_expr(rows) != as_expr(others):
        return None
    if as_expr(parts) != as_expr(length) or places.last_conflict(late) >= early:
        return None
    moved_by = {other: as_expr(row), along: as_expr(part)}
    folded = [_by(fold, moved_by) for fold in behind.body if isinstance(fold, Accumulate)]
    stored = [_stored_by(store, moved_by) for store in behind.row]
    moved = Phase(phase.loops, (*phase.body, *folded), (*phase.row, *stored))
    memory = tuple(dict.fromkeys([*first.memory, *second.memory]))
    return replace(first, phases=(moved,), memory=memory)


def _by(fold: Accumulate, places: Mapping[Symbol, Expr]) -> Accumulate:
    return replace(fold, body=substitute_symbols(fold.body, places))


def _stored_by(store: Store, places: Mapping[Symbol, Expr]) -> Store:
    coordinates = tuple([substitute(c, places) for c in store.coordinates])
    return replace(store, coordinates=coordinates, value=substitute_symbols(store.value, places))
