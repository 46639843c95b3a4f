"""Generated source: translation units, and how their entries are called.

Every pointer that kernels touch has a place in one table a graph; an entry runs all kernels
between two extern calls, so that starting a kernel costs a C call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from braze.ir.loops import Buffer
from braze.shapes.expr import Symbol


@final
@dataclass(frozen=True, slots=True)
class SourceUnit:
    """One translation unit; `text` is complete and includes nothing."""

    name: str
    text: str


@final
@dataclass(frozen=True, slots=True)
class Segment:
    """`int entry(char** table, const long* sizes, int threads)` runs steps [first, last] of the
    schedule, all kernels; it returns 0, 1 for an index out of range, 2 for an integer division
    by zero."""

    entry: str
    first: int
    last: int


@final
@dataclass(frozen=True, slots=True, eq=False)
class KernelSources:
    """table: the buffer behind each place of the pointer table; sizes: the symbol behind each
    place of the array of sizes."""

    units: tuple[SourceUnit, ...]
    segments: tuple[Segment, ...]
    table: tuple[Buffer, ...]
    sizes: tuple[Symbol, ...]
