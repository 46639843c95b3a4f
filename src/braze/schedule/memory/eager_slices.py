"""Writes regions of a concatenated buffer as soon as their operands are computed.

    p0 = mm(...)                          p0 = mm(...)
    p1 = mm(...)                          t[i, r] = p0[i, r]
    t[i, r] = p0[i, r]             ->     p1 = mm(...)
    t[i, r + 64] = p1[i, r]               t[i, r + 64] = p1[i, r]

A library's results live until they are copied: one after the other they need the memory of one.

Refused: regions that are computed from anything but results of library calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from braze.ir.kernels.loops import Buffer, Definition, ExternCall, Reduce, Statement
from braze.ir.kernels.scalars import loads
from braze.schedule.analysis.scatter import scattered


def write_regions_early(statements: Sequence[Statement]) -> list[Statement]:
    """The statements with such regions behind the last call that they read from."""
    counts = Counter(s.target for s in statements if isinstance(s, Definition))
    for target in scattered(statements):
        del counts[target]  # what is scattered comes behind what it is scattered into
    made_by: dict[Buffer, int] = {}
    behind: dict[int, list[Statement]] = {}
    moved: set[Statement] = set()
    for number, statement in enumerate(statements):
        if isinstance(statement, ExternCall):
            made_by |= {b: number for b in statement.outputs if b is not None}
        elif counts[statement.target] > 1 and not isinstance(statement.body, Reduce):
            read = {load.buffer for load in loads(statement.body)}
            if read and read <= made_by.keys():
                behind.setdefault(max(made_by[b] for b in read), []).append(statement)
                moved.add(statement)
    made: list[Statement] = []
    for number, statement in enumerate(statements):
        if statement not in moved:
            made.append(statement)
        made += behind.get(number, ())
    return made
