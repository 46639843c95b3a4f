"""The phases of a task as C++.

Without lanes, the innermost loop of a phase is the vector loop and a row's values are scalars.
With lanes, the vector loop runs over the block's rows inside all other loops, and a row's values
are arrays over the block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from braze.codegen.cpp.accumulate import Folds
from braze.codegen.cpp.index import index_text
from braze.codegen.cpp.operators import TYPES
from braze.codegen.cpp.product import sum_text
from braze.codegen.cpp.scatter import emit_scatter
from braze.codegen.cpp.scope import CppScope, CppTerm
from braze.codegen.cpp.text import indented
from braze.ir.kernels.loops import Buffer, Guarded, Load, Scalar, Scatter
from braze.ir.kernels.scalars import children, walk
from braze.ir.kernels.schedule import Accumulate, Kernel, Loop, Phase, Store, offset, scalar_of
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value


@dataclass(slots=True)
class PhaseWriter:
    """Writes all phases of a kernel's task; `declarations` are the task's arrays."""

    kernel: Kernel
    sizes: Mapping[Symbol, str]
    declarations: list[str] = field(default_factory=list)
    local: dict[Buffer, Callable[[Load], CppTerm]] = field(default_factory=dict)
    pointers: dict[Buffer, str] = field(default_factory=dict)
    names: dict[Buffer, str] = field(default_factory=dict)
    lane_level: int = 0

    def __post_init__(self) -> None:
        for number, buffer in enumerate(self.kernel.memory):
            self.pointers[buffer] = f"p{number}"
        if self.kernel.product is not None:
            self.local[self.kernel.product.target] = self._read_sum
        block = self.kernel.lanes or 1
        for number, buffer in enumerate(self.kernel.scratch):
            count = block * math.prod(constant_value(n) or 0 for n in buffer.shape)
            ctype = TYPES[buffer.dtype].memory
            self.names[buffer] = f"s{number}"
            self.declarations.append(f"alignas(64) {ctype} s{number}[{max(count, 1)}];")

    def text(self) -> list[str]:
        """The lines of one task."""
        lines: list[str] = []
        for number, phase in enumerate(self.kernel.phases):
            lines += self._phase(number, phase)
        self.local.clear()  # readers refer to this object: it would outlive its last use
        return lines

    def _read_sum(self, load: Load) -> CppTerm:
        return CppTerm(sum_text(self.kernel, load), len(self.kernel.phases[0].loops))

    # --- a phase -----------------------------------------------------------------------------

    def _phase(self, number: int, phase: Phase) -> list[str]:
        searches = [s for s in phase.body if isinstance(s, Accumulate) and s.position is not None]
        others = [s for s in phase.body if s not in searches]
        lines: list[str] = []
        if others or not phase.body:
            lines += self._pass(f"v{number}_", phase.loops, others, number > 0) if others else []
        for position, search in enumerate(searches):
            given = [*self._values_for(search, others), search]
            lines += self._pass(f"x{number}_{position}_", phase.loops, given, False)
        if phase.row:
            lines += self._row_section(f"w{number}_", phase.row)
        return lines

    def _values_for(
        self, search: Accumulate, others: Sequence[Store | Accumulate]
    ) -> list[Store | Accumulate]:
        """The stores into no memory, a value an element, that a search reads: its pass over the
        loops computes them once more."""
        wanted = _read(search.body)
        found: list[Store | Accumulate] = []
        for statement in reversed(others):
            target = statement.target
            kept = target in self.names or target in self.pointers
            if isinstance(statement, Store) and target in wanted and not kept:
                found.insert(0, statement)
                wanted |= _read(scalar_of(statement))
        return found

    def _scope(self, prefix: str, loops: Sequence[Loop]) -> CppScope:
        levels = {symbol: 0 for symbol, _ in self.kernel.rows}
        levels.update({symbol: level for level, (symbol, _) in enumerate(loops, start=1)})
        depth = len(loops)
        if self.kernel.lanes:
            depth += 1
            levels[self.kernel.rows[-1][0]] = depth
        self.lane_level = depth if self.kernel.lanes else 0
        self._bind_scratch(levels)
        return CppScope(levels, depth, self.pointers, self.local, self.sizes, prefix)

    def _bind_scratch(self, levels: Mapping[Symbol, int]) -> None:
        for buffer in self.kernel.scratch:
            self.local[buffer] = self._scratch_reader(buffer, levels)

    def _scratch_reader(
        self, buffer: Buffer, levels: Mapping[Symbol, int]
    ) -> Callable[[Load], CppTerm]:
        def read(load: Load) -> CppTerm:
            return CppTerm(
                self._scratch_place(buffer, load.coordinates), max(levels.values(), default=0)
            )

        return read

    def _scratch_place(self, buffer: Buffer, coordinates: Sequence[Expr | Scalar]) -> str:
        place = index_text(offset(buffer, coordinates), self.sizes)
        if self.kernel.lanes:
            place = f"{place} * {self.kernel.lanes} + l"
        return f"{self.names[buffer]}[{place}]"

    # --- one pass over the loops -------------------------------------------------------------

    def _pass(
        self,
        prefix: str,
        loops: Sequence[Loop],
        statements: Sequence[Store | Accumulate],
        warm: bool,
    ) -> list[str]:
        scope = self._scope(prefix, loops)
        folds = Folds(self.kernel, self.sizes, self.declarations, prefix, loops, scope, warm)
        staged = self._staged(scope, loops, statements)
        for statement in statements:
            if isinstance(statement, Store):
                self._store(scope, statement, scope.depth)
            else:
                folds.add(statement)
        lines = self._nest(scope, loops, folds)
        before, after = folds.outer_lines()
        for statement in statements:
            if isinstance(statement, Accumulate):
                self._define_row_value(statement.target, folds.result(statement))
        return [*before, *staged, *lines, *after]

    def _staged(
        self, scope: CppScope, loops: Sequence[Loop], statements: Sequence[Store | Accumulate]
    ) -> list[str]:
        """In a tile, copy what is read across the vector loop into a small array, line by line:
        read from memory itself, its lines would all fall into one set of the cache. What the tile
        computes itself is not there yet."""
        lines: list[str] = []
        made: set[Buffer] = set()
        if sum(map(bool, self.kernel.chunks)) != 2:
            return lines
        (across, _), (along, _) = loops
        width = self.kernel.chunks[1]
        found: dict[tuple[Buffer, tuple[Expr | Scalar, ...]], Load] = {}
        for statement in statements:
            value = scalar_of(statement)
            for load in certain_loads(value):
                if load.buffer not in made:
                    found.setdefault((load.buffer, load.coordinates), load)
            made.add(statement.target)
        for key, load in found.items():
            place = offset(load.buffer, load.coordinates)
            if not _runs_along(place, across, along):
                continue
            name = f"tile{len(scope.stored)}"
            ctype = TYPES[load.dtype].memory
            self.declarations.append(
                f"alignas(64) {ctype} {name}[{self.kernel.chunks[0] * width}];"
            )
            cell = f"{name}[({across} - {across}_first) * {width} + {along} - {along}_first]"
            source = f"{self.pointers[load.buffer]}[{index_text(place, self.sizes)}]"
            lines += [
                f"for (i64 {along} = {along}_first; {along} < {along}_last; ++{along})",
                f"    for (i64 {across} = {across}_first; {across} < {across}_last; ++{across})",
                f"        {cell} = {source};",
            ]
            text = f"({cell} != 0)" if load.dtype == torch.bool else cell
            scope.stored[key] = CppTerm(text, scope.depth)
        return lines

    def _store(self, scope: CppScope, statement: Store, level: int) -> None:
        if isinstance(statement.value, Scatter):
            target, coordinates = statement.target, statement.coordinates
            emit_scatter(scope, target, coordinates, statement.value)
            return
        value = scope.emit(statement.value)
        key = (statement.target, statement.coordinates)
        scope.stored[key] = value
        if statement.target in self.names:
            place = self._scratch_place(statement.target, statement.coordinates)
            scope.lines[level].append(f"{place} = {value.text};")
        elif statement.target in self.pointers:
            at = scope.index(offset(statement.target, statement.coordinates)).text
            scope.lines[level].append(f"{self.pointers[statement.target]}[{at}] = {value.text};")

    def _nest(self, scope: CppScope, loops: Sequence[Loop], folds: Folds) -> list[str]:
        lines = list(scope.lines[scope.depth])
        for level in range(scope.depth, 0, -1):
            lines = self._loop(level, loops, lines, folds, scope.faults, scope.in_turn)
            lines = [*scope.lines[level - 1], *lines]
        return lines

    def _loop(
        self,
        level: int,
        loops: Sequence[Loop],
        body: list[str],
        folds: Folds,
        faults: bool,
        in_turn: bool,
    ) -> list[str]:
        innermost = level == len(loops) + bool(self.kernel.lanes)
        if self.kernel.lanes and innermost:
            opening = [folds.pragma(faults), *lane_header(self.kernel)]
            return [*filter(None, opening), *indented(body, 1), "}"]
        symbol, size = loops[level - 1]
        name, limit = symbol.name, index_text(as_expr(size), self.sizes)
        cut = self.kernel.chunks and self.kernel.chunks[level - 1]
        start, stop = (f"{name}_first", f"{name}_last") if cut else ("0", limit)
        wrap = folds.block(level, innermost, size)
        if wrap is not None:
            start, stop = wrap.start, wrap.stop
        header = f"for (i64 {name} = {start}; {name} < {stop}; ++{name}) {{"
        if innermost:
            plain = [header, *indented(body, 1), "}"]
            text = plain if in_turn else folds.innermost(name, start, stop, body, faults)
        else:
            text = [header, *indented(body, 1), "}"]
        return text if wrap is None else wrap.around(text)

    # --- values of a row ---------------------------------------------------------------------

    def _define_row_value(self, buffer: Buffer, name: str) -> None:
        if self.kernel.lanes:
            self.local[buffer] = lambda load: CppTerm(f"{name}[l]", self.lane_level)
        else:
            self.local[buffer] = lambda load: CppTerm(name, 0)

    def _row_section(self, prefix: str, statements: Sequence[Store]) -> list[str]:
        scope = self._scope(prefix, ())
        named: list[tuple[Buffer, str]] = []
        for position, statement in enumerate(statements):
            self._store(scope, statement, scope.depth)
            value = scope.stored[statement.target, statement.coordinates]
            name = f"{prefix}row{position}"
            if self.kernel.lanes:
                ctype = TYPES[statement.target.dtype].value
                self.declarations.append(f"alignas(64) {ctype} {name}[{self.kernel.lanes}];")
                scope.lines[scope.depth].append(f"{name}[l] = {value.text};")
            else:
                name = value.text
            named.append((statement.target, name))
        for buffer, name in named:
            self._define_row_value(buffer, name)
        lines = list(scope.lines[scope.depth])
        if self.kernel.lanes:
            pragma = "" if scope.faults else "#pragma omp simd"
            lines = [*filter(None, [pragma]), *lane_header(self.kernel), *indented(lines, 1), "}"]
            lines = [*scope.lines[0], *lines]
        return lines


def certain_loads(scalar: Scalar) -> Iterator[Load]:
    """Loads at index expressions that are evaluated at every point."""
    if isinstance(scalar, Guarded):
        return
    if isinstance(scalar, Load) and all(isinstance(c, Expr) for c in scalar.coordinates):
        yield scalar
    for child in children(scalar):
        yield from certain_loads(child)


def _read(scalar: Scalar) -> set[Buffer]:
    return {node.buffer for node in walk(scalar) if isinstance(node, Load)}


def _runs_along(place: Expr, across: Symbol, along: Symbol) -> bool:
    """Whether neighbours in memory are neighbours along `across`, and not along `along`."""
    steps = dict(place.terms)
    other = steps.get((along,), 0)
    return steps.get((across,)) == 1 and other not in (0, 1)


def lane_header(kernel: Kernel) -> list[str]:
    """The loop over the lanes of a block; `l` counts from its first row."""
    symbol = kernel.rows[-1][0]
    return ["for (i64 l = 0; l < last - first; ++l) {", f"    const i64 {symbol} = first + l;"]
