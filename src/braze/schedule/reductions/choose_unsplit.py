"""Keeps sums over long rows whole where several programs share the row's kernel.

    s[c] = sum(n, i: x[n, c, i])                  # not split
    y[n, c, i] = x[n, c, i] - s[c] / N

Where there are few rows, a sum over each is split and read by kernels of its own; what needs the
sum then reads the rows once more: two reads and a write. Programs that hold a part of a row each
and wait for the others (`cooperative_reduction.py`) read it once: a batch norm in training took
0.154 ms
of an H200, and takes 0.125 so, its backward 0.249 and 0.175.

Whether all that reads a row becomes one kernel is known only when the kernels are there. Sums
whose kernel is not shared are split in a second attempt (`Attempts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, Definition, Reduce, Scalar, Statement
from braze.ir.kernels.scalars import loads
from braze.ir.kernels.schedule import Kernel, Step
from braze.schedule.analysis.cost import estimated, points
from braze.schedule.analysis.strides import reduces_over_lanes
from braze.schedule.reductions.cooperative_reduction import KINDS, cut_row, is_worth_it, row_reads
from braze.schedule.target import Target
from braze.shapes.expr import constant_value


@dataclass(slots=True)
class Attempts:
    """refused: which of the sums that may be left whole have kernels that were not shared, by their
    places among them: buffers are others in each attempt. left: those of this attempt."""

    target: Target
    refused: set[int] = field(default_factory=set)
    left: dict[int, Buffer] = field(default_factory=dict)

    def choose(self, statements: Sequence[Statement]) -> frozenset[Buffer]:
        """The sums that are left whole."""
        found = enumerate(_long_sums(statements, self.target))
        self.left = {place: buffer for place, buffer in found if place not in self.refused}
        return frozenset(self.left.values())

    def succeeded(self, steps: Sequence[Step]) -> bool:
        """Whether each of them is computed by a kernel that programs share; if not, those are
        refused from now on."""
        shared: set[Buffer] = set()
        for step in steps:
            if isinstance(step, Kernel) and step.spread is not None:
                shared |= {s.target for phase in step.phases for s in (*phase.body, *phase.row)}
        lost = {place for place, buffer in self.left.items() if buffer not in shared}
        self.refused |= lost
        return not lost


# --- private ---------------------------------------------------------------------------------


def _long_sums(statements: Sequence[Statement], target: Target) -> list[Buffer]:
    """Folds of rows that would be split, and whose rows something reads again that needs them."""
    definitions = [s for s in statements if isinstance(s, Definition)]
    places = [n for n, definition in enumerate(definitions) if _is_long(definition, target)]
    if not places:
        return []
    first = places[0]
    known = [
        _DefinitionReads(d, frozenset(load.buffer for load in loads(_body(d))))
        for d in definitions[first:]
    ]
    found = [known[place - first :] for place in places]
    return [sum_.definition.target for sum_, *later in found if _is_read_again(sum_, later)]


@frozen
class _DefinitionReads:
    """A definition and the buffers that it reads."""

    definition: Definition
    reads: frozenset[Buffer]


def _is_long(definition: Definition, target: Target) -> bool:
    body = definition.body
    if not isinstance(body, Reduce) or body.kind not in KINDS or body.dtype != torch.float32:
        return False
    sizes = [size for _, size in definition.axes]
    known = all(constant_value(size) is not None for size in sizes)
    if not known or not sizes or estimated(sizes) >= target.enough_tasks:
        return False
    read = row_reads([body.body], [symbol for symbol, _ in definition.axes], body.axes)
    if not read or cut_row(body.axes, len(read), target) is None:
        return False
    return is_worth_it(sizes, body.axes, read, target) and not reduces_over_lanes(definition)


def _is_read_again(row: _DefinitionReads, later: Sequence[_DefinitionReads]) -> bool:
    """Whether a value of each point is computed of the row and of what is folded of it."""
    derived, size = {row.definition.target}, points(row.definition)
    for known in later:
        if known.reads.isdisjoint(derived):
            continue
        derived.add(known.definition.target)
        is_whole = (
            not isinstance(known.definition.body, Reduce) and points(known.definition) == size
        )
        if is_whole and not known.reads.isdisjoint(row.reads):
            return True
    return False


def _body(definition: Definition) -> Scalar:
    return definition.body.body if isinstance(definition.body, Reduce) else definition.body
