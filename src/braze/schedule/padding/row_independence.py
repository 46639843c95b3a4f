"""Proves which dynamic sizes may be padded, because the rows of all results are independent.

A size `s` may be run as any `p >= s`, its inputs filled up and its results cut, if what a row of a
result is depends neither on later rows nor on `s`. That holds where each value with that size has
it in one dimension, and

    y[i0 < s, i1 < 8] = f(x[i0, i1])       reads the row that it writes, or row zero
    z[i0 < s] = sum over r0 < 8: x[i0, r0] folds over something else
    w = aten.mm(x, weight)                 is a library call that computes rows by themselves
    p[i0 < s, i1] = table[i0, i1]          takes the row's number, but not `s`: as far as the table

Rows behind `s` are computed from zeros. Nothing may fault there, so an index that is looked up must
be in range for zeros (`table[checked(x[i0], 100)]` is), or for row numbers up to a largest `p`.

Refused: folds over the size; its value, and what follows from it; writes to inputs that have it;
what is scattered; sizes like `s + 1` or `s * s`; random numbers; results that share memory or are
inputs. The proof is of the program as it stands, so what guards say of `s` is not needed at `p`,
but for a largest value that they gave its symbol.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any, final

from braze.ir.graphs.random_ops import draws
from braze.ir.kernels.loops import (
    Buffer,
    BufferView,
    Definition,
    ExternCall,
    LoopProgram,
    given_symbols,
)
from braze.ir.kernels.padding import PaddedSize, Padding, Rows
from braze.ir.types import Size
from braze.schedule.padding.row_dataflow import UNKNOWN, RowValues, Value, joined
from braze.schedule.padding.row_independent_ops import rows_of_results
from braze.schedule.padding.row_mapping import (
    ONE,
    Dependent,
    Seen,
    factorisations,
    fills_memory,
    multiplicity,
    row_of,
    seen,
)
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, symbols
from braze.shapes.substitution import substitute


def find_padding(program: LoopProgram) -> Padding:
    """The sizes of a program that may be padded together, and why others may not."""
    sizes: list[PaddedSize] = []
    refused: list[str] = []
    taken: set[tuple[int, int]] = set()
    for symbol in _changing(program):
        try:
            made = _Proof(program, symbol).padded()
            places = {(number, rows.dim) for number, rows in made.results}
            if places & taken:
                raise Dependent("a result has it in one dimension with another one")
        except Dependent as reason:
            refused.append(f"{symbol}: {reason}")
            continue
        taken |= places
        sizes.append(made)
    return Padding(tuple(sizes), tuple(refused))


# --- private ---------------------------------------------------------------------------------


def _changing(program: LoopProgram) -> list[Symbol]:
    """The symbols in shapes of inputs, and those that the call is given as numbers."""
    found: dict[Symbol, None] = {}
    for buffer in program.inputs:
        for size in buffer.shape:
            found |= dict.fromkeys(sorted(symbols(size), key=str))
    return list(found)


@final
@dataclass(slots=True)
class _ProvenRows:
    """What is proven so far. rows: of each buffer, None where it has none; padding: what is in the
    rows behind the size; lost: buffers whose contents follow from the size; most: as `PaddedSize`.
    """

    rows: dict[Buffer, Rows | None] = field(default_factory=dict)
    padding: dict[Buffer, Value] = field(default_factory=dict)
    lost: set[Buffer] = field(default_factory=set)
    most: int | None = None

    def note_most(self, most: int | None) -> None:
        """The size may be run as no more than that."""
        if most is not None:
            self.most = most if self.most is None else min(self.most, most)


@final
class _Proof:
    """Of one size."""

    def __init__(self, program: LoopProgram, size: Symbol) -> None:
        self.program, self.size = program, size
        self.row = Symbol(f"{size.name}_row", 0)
        self.known = _ProvenRows(most=size.upper)

    def padded(self) -> PaddedSize:
        """The size with its inputs and results; raises Dependent."""
        if self.size in self.program.sizes.symbols():
            raise Dependent("its value is used")
        inputs = tuple(self._inputs())
        for statement in self.program.statements:
            if isinstance(statement, ExternCall):
                self._call(statement)
            else:
                self._definition(statement)
        self._writes()
        results = tuple(self._results())
        return PaddedSize(self.size, self.known.most, inputs, results)

    def _inputs(self) -> Iterator[tuple[int, int]]:
        for buffer, _ in self.program.constants:
            self.known.rows[buffer] = None
        for number, buffer in enumerate(self.program.inputs):
            rows = self.known.rows[buffer] = self._rows_of(buffer, ONE, ONE)
            if rows is None:
                if any(self.size in symbols(step) for step in buffer.stride):
                    raise Dependent(f"a stride of input {number} is of it")
                continue
            if any(step == 0 for step in buffer.stride):
                raise Dependent(f"input {number} is expanded")
            whole = BufferView(buffer, buffer.shape, buffer.stride, 0, buffer.dtype)
            seen(whole, self.size, rows)  # larger, elements of it may not come to lie on each other
            self.known.padding[buffer] = 0
            yield number, rows.dim

    def _rows_of(self, buffer: Buffer, outer: Expr, inner: Expr) -> Rows | None:
        """Where a buffer has the size, which is to be so often in one of its dimensions."""
        sized = [n for n, length in enumerate(buffer.shape) if self.size in symbols(length)]
        if not sized:
            return None
        if len(sized) > 1:
            raise Dependent(f"{buffer} has it in two dimensions")
        count = multiplicity(buffer.shape[sized[0]], self.size)
        if count is None or count != outer * inner:
            raise Dependent(f"a size is {buffer.shape[sized[0]]}")
        return Rows(sized[0], outer, inner)

    # --- definitions -----------------------------------------------------------------------------

    def _definition(self, definition: Definition) -> None:
        target = definition.target
        sized = [axis for axis in definition.axes if self.size in symbols(axis[1])]
        has_rows = any(self.size in symbols(length) for length in target.shape)
        if not has_rows:
            if sized:
                raise Dependent(f"{target} takes values of all rows")
            self._checked(definition, None, {})
            self.known.rows[target] = None
            return
        if len(sized) != 1:
            raise Dependent(f"{target} is not written row by row")
        first: Dependent | None = None
        for rows, (outer, inner) in self._ways(target, sized[0][1]):
            try:
                axes = self._in_rows(sized[0][0], outer, inner)
                value, most = self._checked(definition, rows, axes)
            except Dependent as reason:
                first = first or reason
                continue
            before = self.known.padding.get(target)
            self.known.padding[target] = value if before is None else joined(before, value)
            self.known.rows[target] = rows
            self.known.note_most(most)
            return
        raise first or Dependent(f"a size is {sized[0][1]}")

    def _ways(self, target: Buffer, axis: Size) -> Iterator[tuple[Rows, tuple[Expr, Expr]]]:
        """Ways to count the rows of a buffer, and of the loop that writes it."""
        counts = [multiplicity(n, self.size) for n in target.shape if self.size in symbols(n)]
        count, along = counts[0], multiplicity(axis, self.size)
        if count is None or along is None:
            return
        fixed = self.known.rows.get(target)
        ways = factorisations(count) if fixed is None else [(fixed.outer, fixed.inner)]
        for (outer, inner), of_axis in product(ways, factorisations(along)):
            rows = self._rows_of(target, outer, inner)
            if rows is not None:
                yield rows, of_axis

    def _in_rows(self, axis: Symbol, outer: Expr, inner: Expr) -> dict[Symbol, object]:
        """A loop over the size as (outer, row, inner): the place of its symbol, and their ends."""
        most = [constant_value(end - 1) for end in (outer, inner)]
        around = Symbol(f"{axis.name}_outer", 0, most[0])
        inside = Symbol(f"{axis.name}_inner", 0, most[1])
        place = as_expr(self.row) * inner
        extents: dict[Symbol, Expr] = {}
        if outer != ONE:
            place = place + as_expr(around) * as_expr(self.size) * inner
            extents[around] = outer
        if inner != ONE:
            place = place + inside
            extents[inside] = inner
        return {axis: place, **extents}

    def _checked(
        self, definition: Definition, rows: Rows | None, axes: dict[Symbol, Any]
    ) -> tuple[Value, int | None]:
        """What the rows behind the size are, and how far it reaches; raises Dependent."""
        loops = dict(definition.axes)
        replaced = {s: e for s, e in axes.items() if s in loops}
        extents = {s: n for s, n in loops.items() if s not in replaced}
        extents |= {s: e for s, e in axes.items() if s not in loops}
        for dim, place in enumerate(definition.store):
            placed = substitute(place, replaced)
            if rows is not None and dim == rows.dim:
                if not row_of(placed, self.size, self.row, rows, extents):
                    raise Dependent(f"{definition.target} is not written row by row")
            elif {self.size, self.row} & symbols(placed):
                raise Dependent(f"{definition.target} is not written row by row")
        values = RowValues(self.size, self.row, self.known.rows, self.known.padding, extents)
        values.lost, values.replaced = self.known.lost, replaced
        return values.of(definition.body), values.most

    # --- library calls, results ------------------------------------------------------------------

    def _see(self, view: BufferView) -> Seen:
        if view.buffer in self.known.lost:
            raise Dependent(f"{view.buffer} follows from the size")
        return seen(view, self.size, self.known.rows[view.buffer])

    def _call(self, call: ExternCall) -> None:
        if self.size in given_symbols(call):
            raise Dependent(f"{call.op} is given its value")
        if draws(call.op, call.args, call.kwargs):
            raise Dependent(f"{call.op} draws random numbers")
        if call.computes is not None:
            raise Dependent(f"{call.op} computes a number")
        rows = rows_of_results(call, self._see)
        for buffer in call.outputs:
            if buffer is None:
                continue
            self.known.rows[buffer] = None
            sized = any(self.size in symbols(length) for length in buffer.shape)
            if rows is None:
                if sized:
                    raise Dependent(f"{call.op} makes a result of its size")
                continue
            try:
                found = self._rows_of(buffer, rows.outer, rows.inner)
            except Dependent:
                found = None
            if found is None or found.dim != rows.dim:
                self.known.lost.add(buffer)
                continue
            self.known.rows[buffer], self.known.padding[buffer] = found, UNKNOWN

    def _writes(self) -> None:
        for target, view in self.program.mutations:
            if self.known.rows[target] is not None or self._see(view).rows is not None:
                raise Dependent("an input that has it is written to")

    def _results(self) -> Iterator[tuple[int, Rows]]:
        inputs = {*self.program.inputs}
        for number, view in enumerate(self.program.outputs):
            rows = self._see(view).rows
            if self.known.rows[view.buffer] is None:
                if rows is not None:
                    raise Dependent(f"result {number} is expanded")
                continue
            shared = sum(other.buffer is view.buffer for other in self.program.outputs)
            if view.buffer in inputs:
                raise Dependent(f"result {number} is an input")
            if rows is None or shared > 1 or not fills_memory(view):
                raise Dependent(f"result {number} is a part of another value")
            yield number, rows
