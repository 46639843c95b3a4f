"""The phases of a task as C++.

Without lanes, the innermost loop of a phase is the vector loop and a row's values are scalars.
With lanes, the vector loop runs over the block's rows inside all other loops, and a row's values
are arrays over the block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from braze.codegen.cpp.fold import (
    BLOCK,
    WIDER,
    fold_of,
    keeps_nan,
    lane_combine,
    needs_blocks,
    takes,
)
from braze.codegen.cpp.index import index_text
from braze.codegen.cpp.operators import TYPES, literal_text
from braze.codegen.cpp.scope import Scope, Term
from braze.codegen.cpp.text import indented
from braze.ir.loops import Buffer, Literal, Load
from braze.ir.schedule import Accumulate, Kernel, Loop, Phase, Store, offset
from braze.shapes.expr import Symbol, as_expr, constant_value

_LANE_BLOCK = 64  # values that a lane adds up before a wider type takes over


@dataclass(slots=True)
class PhaseWriter:
    """Writes all phases of a kernel's task; `declarations` are the task's arrays."""

    kernel: Kernel
    sizes: Mapping[Symbol, str]
    declarations: list[str] = field(default_factory=list)
    local: dict[Buffer, Callable[[Load], Term]] = field(default_factory=dict)
    pointers: dict[Buffer, str] = field(default_factory=dict)
    names: dict[Buffer, str] = field(default_factory=dict)
    lane_level: int = 0

    def __post_init__(self) -> None:
        for number, buffer in enumerate(self.kernel.memory):
            self.pointers[buffer] = f"p{number}"
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
        return lines

    # --- a phase -----------------------------------------------------------------------------

    def _phase(self, number: int, phase: Phase) -> list[str]:
        searches = [s for s in phase.body if isinstance(s, Accumulate) and s.position is not None]
        others = [s for s in phase.body if s not in searches]
        lines: list[str] = []
        if others or not phase.body:
            lines += self._pass(f"v{number}_", phase.loops, others) if others else []
        for position, search in enumerate(searches):
            lines += self._pass(f"x{number}_{position}_", phase.loops, [search])
        if phase.row:
            lines += self._row_section(f"w{number}_", phase.row)
        return lines

    def _scope(self, prefix: str, loops: Sequence[Loop]) -> Scope:
        levels = {symbol: 0 for symbol, _ in self.kernel.rows}
        levels.update({symbol: level for level, (symbol, _) in enumerate(loops, start=1)})
        depth = len(loops)
        if self.kernel.lanes:
            depth += 1
            levels[self.kernel.rows[-1][0]] = depth
        self.lane_level = depth if self.kernel.lanes else 0
        self._bind_scratch(levels)
        return Scope(levels, depth, self.pointers, self.local, self.sizes, prefix)

    def _bind_scratch(self, levels: Mapping[Symbol, int]) -> None:
        for buffer in self.kernel.scratch:
            self.local[buffer] = self._scratch_reader(buffer, levels)

    def _scratch_reader(
        self, buffer: Buffer, levels: Mapping[Symbol, int]
    ) -> Callable[[Load], Term]:
        def read(load: Load) -> Term:
            return Term(self._scratch_place(buffer, load.coordinates), max(levels.values()))

        return read

    def _scratch_place(self, buffer: Buffer, coordinates: Sequence[object]) -> str:
        place = index_text(offset(buffer, coordinates), self.sizes)  # type: ignore[arg-type]
        if self.kernel.lanes:
            place = f"{place} * {self.kernel.lanes} + l"
        return f"{self.names[buffer]}[{place}]"

    # --- one pass over the loops -------------------------------------------------------------

    def _pass(
        self, prefix: str, loops: Sequence[Loop], statements: Sequence[Store | Accumulate]
    ) -> list[str]:
        scope = self._scope(prefix, loops)
        folds = _Folds(self, prefix, loops, scope)
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
        return [*before, *lines, *after]

    def _store(self, scope: Scope, statement: Store, level: int) -> None:
        value = scope.emit(statement.value)
        key = (statement.target, statement.coordinates)
        scope.stored[key] = value
        if statement.target in self.names:
            place = self._scratch_place(statement.target, statement.coordinates)
            scope.lines[level].append(f"{place} = {value.text};")
        elif statement.target in self.pointers:
            at = scope.index(offset(statement.target, statement.coordinates)).text
            scope.lines[level].append(f"{self.pointers[statement.target]}[{at}] = {value.text};")

    def _nest(self, scope: Scope, loops: Sequence[Loop], folds: _Folds) -> list[str]:
        lines = list(scope.lines[scope.depth])
        for level in range(scope.depth, 0, -1):
            lines = self._loop(level, loops, lines, folds, scope.faults)
            lines = [*scope.lines[level - 1], *lines]
        return lines

    def _loop(
        self, level: int, loops: Sequence[Loop], body: list[str], folds: _Folds, faults: bool
    ) -> list[str]:
        innermost = level == len(loops) + bool(self.kernel.lanes)
        if self.kernel.lanes and innermost:
            header = [folds.pragma(faults), *lane_header(self.kernel)]
            return [*filter(None, header), *indented(body, 1), "}"]
        symbol, size = loops[level - 1]
        name, limit = symbol.name, index_text(as_expr(size), self.sizes)
        cut = self.kernel.chunks and self.kernel.chunks[level - 1]
        start, stop = (f"{name}_first", f"{name}_last") if cut else ("0", limit)
        wrap = folds.block(level, innermost, size)
        if wrap is not None:
            start, stop = wrap.start, wrap.stop
        header = [f"for (i64 {name} = {start}; {name} < {stop}; ++{name}) {{"]
        if innermost:
            header.insert(0, folds.pragma(faults))
        text = [*filter(None, header), *indented(body, 1), "}"]
        return text if wrap is None else wrap.around(text)

    # --- values of a row ---------------------------------------------------------------------

    def _define_row_value(self, buffer: Buffer, name: str) -> None:
        if self.kernel.lanes:
            self.local[buffer] = lambda load: Term(f"{name}[l]", self.lane_level)
        else:
            self.local[buffer] = lambda load: Term(name, 0)

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


def lane_header(kernel: Kernel) -> list[str]:
    """The loop over the lanes of a block; `l` counts from its first row."""
    symbol = kernel.rows[-1][0]
    return ["for (i64 l = 0; l < last - first; ++l) {", f"    const i64 {symbol} = first + l;"]


# --- folds -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Block:
    """A loop cut into blocks: `before` and `after` stand around each block's loop."""

    start: str
    stop: str
    header: str
    before: tuple[str, ...]
    after: tuple[str, ...]

    def around(self, loop: list[str]) -> list[str]:
        """The block loop around `loop`; an empty header means one block."""
        inside = [*self.before, *loop, *self.after]
        return [self.header, *indented(inside, 1), "}"] if self.header else inside


@dataclass(slots=True)
class _Folds:
    """The accumulators of one pass."""

    writer: PhaseWriter
    prefix: str
    loops: Sequence[Loop]
    scope: Scope
    added: list[Accumulate] = field(default_factory=list)

    def name(self, statement: Accumulate) -> str:
        return f"{self.prefix}a{self.added.index(statement)}"

    def result(self, statement: Accumulate) -> str:
        name = self.name(statement)
        return f"{name}_at" if statement.position is not None else name

    def add(self, statement: Accumulate) -> None:
        """Emit the statement's value and its combination into the innermost lines."""
        self.added.append(statement)
        scope = self.scope
        value = scope.emit(statement.body)
        lanes = "[l]" if self.writer.kernel.lanes else ""
        name = self.name(statement)
        lines = scope.lines[scope.depth]
        if statement.position is not None:
            at = scope.assign(scope.index(statement.position).text, torch.int64, scope.depth)
            best, where = f"{name}{lanes}", f"{name}_at{lanes}"
            test = takes(statement.kind, statement.body.dtype)
            taken = scope.assign(
                f"(bool)({test.format(best, value.text, where, at.text)})", torch.bool, scope.depth
            )
            lines.append(f"{best} = {taken.text} ? {value.text} : {best};")
            lines.append(f"{where} = {taken.text} ? {at.text} : {where};")
            return
        if lanes:
            partial = f"{name}_part[l]" if self._is_blocked(statement) else f"{name}[l]"
            combine = lane_combine(statement.kind, statement.dtype)
            lines.append(combine.format(partial, value.text) + ";")
            return
        partial = f"{name}_part" if self._is_blocked(statement) else name
        fold = fold_of(statement.kind, statement.dtype)
        lines.append(fold.combine.format(partial, value.text) + ";")
        if keeps_nan(statement.kind, statement.dtype):
            lines.append(f"{name}_nan |= {value.text} != {value.text};")

    # --- blocks ------------------------------------------------------------------------------

    def _count(self) -> int | None:
        """Values folded into one result, None if unknown."""
        sizes = [constant_value(size) for _, size in self.loops]
        return None if None in sizes else math.prod(s or 0 for s in sizes)

    def _is_blocked(self, statement: Accumulate) -> bool:
        if not needs_blocks(statement.kind, statement.dtype):
            return False
        count = self._count()
        if self.writer.kernel.lanes:
            return count is None or count > _LANE_BLOCK
        return count is None or count > BLOCK or len(self.loops) > 1

    def block(self, level: int, innermost: bool, size: object) -> Block | None:
        """How the loop at a level is cut, if partial results are kept there."""
        blocked = [s for s in self.added if self._is_blocked(s)]
        if not blocked:
            return None
        if self.writer.kernel.lanes:
            return self._lane_block(level, blocked)
        return self._scalar_block(innermost, blocked, size)

    def _scalar_block(
        self, innermost: bool, blocked: list[Accumulate], size: object
    ) -> Block | None:
        if not innermost:
            return None
        before = []
        after = []
        for s in blocked:
            fold = fold_of(s.kind, s.dtype)
            before.append(f"{TYPES[s.dtype].value} {self.name(s)}_part = {fold.start};")
            after.append(f"{self.name(s)}_sum {fold.clause}= {self.name(s)}_part;")
        return self._cut(len(self.loops), BLOCK, before, after)

    def _lane_block(self, level: int, blocked: list[Accumulate]) -> Block | None:
        if level != 1:
            return None
        inner = math.prod(constant_value(n) or _LANE_BLOCK for _, n in self.loops[1:])
        before = []
        after = []
        for s in blocked:
            fold, name = fold_of(s.kind, s.dtype), self.name(s)
            before.append(_for_lanes(f"{name}_part[l] = {fold.start};"))
            after.append(_for_lanes(f"{name}_sum[l] {fold.clause}= {name}_part[l];"))
        return self._cut(1, max(1, _LANE_BLOCK // inner), before, after)

    def _cut(self, level: int, step: int, before: list[str], after: list[str]) -> Block:
        symbol, size = self.loops[level - 1]
        limit = index_text(as_expr(size), self.writer.sizes)
        known = constant_value(size)
        if known is not None and known <= step:
            return Block("0", limit, "", tuple(before), tuple(after))
        start = f"{symbol}_b"
        header = f"for (i64 {start} = 0; {start} < {limit}; {start} += {step}) {{"
        before = [f"const i64 {symbol}_e = bz_min({start} + {step}, {limit});", *before]
        return Block(start, f"{symbol}_e", header, tuple(before), tuple(after))

    # --- around the nest ---------------------------------------------------------------------

    def outer_lines(self) -> tuple[list[str], list[str]]:
        """What declares the accumulators before the nest, and what finishes them after it."""
        before: list[str] = []
        after: list[str] = []
        for statement in self.added:
            lines = self._lane_frame if self.writer.kernel.lanes else self._scalar_frame
            start, end = lines(statement)
            before += start
            after += end
        return before, after

    def _scalar_frame(self, s: Accumulate) -> tuple[list[str], list[str]]:
        name, ctype = self.name(s), TYPES[s.dtype].value
        if s.position is not None:
            best = TYPES[s.body.dtype].value
            return [f"{best} {name} = {{}};", f"i64 {name}_at = -1;"], []
        fold = fold_of(s.kind, s.dtype)
        if self._is_blocked(s):
            wide = WIDER[s.dtype]
            declared = [f"{wide} {name}_sum = {fold.start};"]
            return declared, [f"const {ctype} {name} = ({ctype}){name}_sum;"]
        kept = "int" if s.dtype == torch.bool else ctype
        if keeps_nan(s.kind, s.dtype):
            nan = literal_text(Literal(math.nan, s.dtype))
            declared = [f"{kept} {name} = {fold.start};", f"int {name}_nan = 0;"]
            return declared, [f"if ({name}_nan) {name} = {nan};"]
        return [f"{kept} {name} = {fold.start};"], []

    def _lane_frame(self, s: Accumulate) -> tuple[list[str], list[str]]:
        name, ctype = self.name(s), TYPES[s.dtype].value
        lanes = self.writer.kernel.lanes
        declare = self.writer.declarations
        if s.position is not None:
            best = TYPES[s.body.dtype].value
            declare.append(f"alignas(64) {best} {name}[{lanes}];")
            declare.append(f"alignas(64) i64 {name}_at[{lanes}];")
            return [_for_lanes(f"{name}[l] = {{}};"), _for_lanes(f"{name}_at[l] = -1;")], []
        fold = fold_of(s.kind, s.dtype)
        declare.append(f"alignas(64) {ctype} {name}[{lanes}];")
        if not self._is_blocked(s):
            return [_for_lanes(f"{name}[l] = {fold.start};")], []
        declare.append(f"alignas(64) {ctype} {name}_part[{lanes}];")
        declare.append(f"alignas(64) {WIDER[s.dtype]} {name}_sum[{lanes}];")
        start = _for_lanes(f"{name}_sum[l] = {fold.start};")
        return [start], [_for_lanes(f"{name}[l] = ({ctype}){name}_sum[l];")]

    def pragma(self, faults: bool) -> str:
        """The vectorisation pragma of the innermost loop, or nothing where order matters."""
        if self.writer.kernel.lanes:
            return "" if faults else "#pragma omp simd"
        if any(s.position is not None for s in self.added):
            return ""
        clauses = []
        for s in self.added:
            fold, name = fold_of(s.kind, s.dtype), self.name(s)
            partial = f"{name}_part" if self._is_blocked(s) else name
            clauses.append(f" reduction({fold.clause}:{partial})")
            if keeps_nan(s.kind, s.dtype):
                clauses.append(f" reduction(|:{name}_nan)")
        if faults:
            clauses.append(" reduction(|:bad)")
        return "#pragma omp simd" + "".join(clauses)


def _for_lanes(statement: str) -> str:
    return f"for (i64 l = 0; l < last - first; ++l) {statement}"
