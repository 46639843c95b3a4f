"""The accumulators of one pass over a phase's loops: declared, combined, finished.

Without lanes, a fold is a scalar reduction of the vector loop; a cheap one over a row that the
cache holds already (`warm`) runs in four strands, since one vector accumulator waits for its own
last addition; from memory, four streams in a row are slower than one. argmax and argmin keep the
best of each of `STRIDE` positions in small arrays. A sum in a loop that GCC makes no vectors of is
one chain of additions, and what it adds is dear: it is kept in a wider type. With lanes,
accumulators are arrays over the block.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
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
from braze.codegen.cpp.scope import CppScope
from braze.codegen.cpp.text import indented
from braze.frozen import frozen
from braze.ir.kernels.loops import Literal
from braze.ir.kernels.schedule import Accumulate, Kernel, Loop
from braze.shapes.expr import Symbol, as_expr, constant_value

# Values that a lane adds up before a wider type takes over. In short folds fewer: with 64 of 64 in
# one chain, the error is 2.6 of eager's, whose cascade goes by sixteen; behind a few blocks it is
# half of that, since they are added up in the wider type.
_LANE_BLOCK = 64
_SHORT_LANE_BLOCK = 16
_BLOCK_LENGTH = 256  # values of a block: sixteen or so a lane, as in eager's cascade
_STRANDS = 4
_STRANDED_LINES = 8  # of a loop body that is worth writing four times
# A load that is made in some lanes only, from a place that takes a division: no vectors of these.
_BRANCH = re.compile(r" \? p\d+\[.*(bz_floor_|[/%] \(?n\d)")
STRIDE = 64


@frozen
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
class Folds:
    """The accumulators of one pass."""

    kernel: Kernel
    sizes: Mapping[Symbol, str]
    declarations: list[str]
    prefix: str
    loops: Sequence[Loop]
    scope: CppScope
    warm: bool = False
    added: list[Accumulate] = field(default_factory=list)
    wide: list[Accumulate] = field(default_factory=list)

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
        lanes = "[l]" if self.kernel.lanes else ""
        name = self.name(statement)
        lines = scope.lines[scope.depth]
        if statement.position is not None:
            self._add_search(statement, value.text)
            return
        if lanes:
            partial = f"{name}_part[l]" if self._is_blocked(statement) else f"{name}[l]"
            combine = lane_combine(statement.kind, statement.dtype)
            lines.append(combine.format(partial, value.text) + ";")
            return
        fold = fold_of(statement.kind, statement.dtype)
        if self._is_one_chain(statement, lines):
            self.wide.append(statement)
            lines.append(f"{name}_sum {fold.clause}= {value.text};")
            return
        partial = f"{name}_part" if self._is_blocked(statement) else name
        lines.append(fold.combine.format(partial, value.text) + ";")
        if keeps_nan(statement.kind, statement.dtype):
            lines.append(f"{name}_nan |= {value.text} != {value.text};")

    def _is_one_chain(self, statement: Accumulate, lines: Sequence[str]) -> bool:
        if not needs_blocks(statement.kind, statement.dtype) or statement.dtype != torch.float32:
            return False
        return any(_BRANCH.search(line) for line in lines)

    def _add_search(self, statement: Accumulate, value: str) -> None:
        assert statement.position is not None
        scope, name = self.scope, self.name(statement)
        dtype = torch.int64 if self.kernel.lanes else self._position_dtype()
        ctype = TYPES[dtype].value
        at = scope.assign(f"({ctype})({scope.index(statement.position).text})", dtype, scope.depth)
        array = "" if self.kernel.lanes else "_of"
        best, where = f"{name}{array}[l]", f"{name}_at{array}[l]"
        ascending = len(self.loops) == 1 and statement.position == as_expr(self.loops[0][0])
        test = takes(statement.kind, statement.body.dtype, ascending)
        text = f"(bool)({test.format(best, value, where, at.text)})"
        taken = scope.assign(text, torch.bool, scope.depth).text
        lines = scope.lines[scope.depth]
        lines.append(f"{best} = {taken} ? {value} : {best};")
        lines.append(f"{where} = {taken} ? {at.text} : {where};")

    def _position_dtype(self) -> torch.dtype:
        count = self._count()
        return torch.int32 if count is not None and count < 2**31 else torch.int64

    # --- the innermost loop --------------------------------------------------------------------

    def innermost(
        self, name: str, start: str, stop: str, body: list[str], faults: bool
    ) -> list[str]:
        """The vector loop over [start, stop) around the lines of `body`."""
        if any(s.position is not None for s in self.added):
            return self._search_loop(name, start, stop, body, faults)
        if self._is_stranded(body, faults):
            return self._stranded_loop(name, start, stop, body)
        header = f"for (i64 {name} = {start}; {name} < {stop}; ++{name}) {{"
        return [self.pragma(faults), header, *indented(body, 1), "}"]

    def _search_loop(
        self, name: str, start: str, stop: str, body: list[str], faults: bool
    ) -> list[str]:
        inner = [
            "#pragma omp simd" + (" reduction(|:bad)" if faults else ""),
            f"for (i64 l = 0; l < bz_min({STRIDE}, {stop} - {name}_b); ++l) {{",
            f"    const i64 {name} = {name}_b + l;",
            *indented(body, 1),
            "}",
        ]
        header = f"for (i64 {name}_b = {start}; {name}_b < {stop}; {name}_b += {STRIDE}) {{"
        return [header, *indented(inner, 1), "}"]

    def _is_stranded(self, body: list[str], faults: bool) -> bool:
        if faults or self.wide or not self.warm or not self.added or len(body) > _STRANDED_LINES:
            return False
        plain = all("const " in line or "_a" in line.split("=")[0] for line in body)
        length = constant_value(self.loops[-1][1])
        heavy = any("bz_" in line and "bz_from" not in line for line in body)
        return plain and not heavy and (length is None or length >= 4 * STRIDE)

    def _stranded_loop(self, name: str, start: str, stop: str, body: list[str]) -> list[str]:
        names = [n for s in self.added for n in self._accumulators(s)]
        count = f"{self.prefix}count"
        declared, combined, strands = [], [], []
        for strand in range(1, _STRANDS):
            for s in self.added:
                declared += self._strand_start(s, strand)
                combined += self._strand_end(s, strand)
        for strand in range(_STRANDS):
            lines = [_with_suffix(line, names, strand) for line in body]
            inside = f"const i64 {name} = {name}_s + {strand} * {count};"
            strands += ["{", *indented([inside, *lines], 1), "}"]
        clauses = "".join(self._clauses(strand) for strand in range(_STRANDS))
        return [
            f"const i64 {count} = ({stop} - {start}) / {STRIDE} * {STRIDE // _STRANDS};",
            *declared,
            "#pragma omp simd" + clauses,
            f"for (i64 {name}_s = {start}; {name}_s < {start} + {count}; ++{name}_s) {{",
            *indented(strands, 1),
            "}",
            *combined,
            self.pragma(False),
            f"for (i64 {name} = {start} + {_STRANDS} * {count}; {name} < {stop}; ++{name}) {{",
            *indented(body, 1),
            "}",
        ]

    def _accumulators(self, s: Accumulate) -> list[str]:
        if s in self.wide:
            return [f"{self.name(s)}_sum"]
        partial = f"{self.name(s)}_part" if self._is_blocked(s) else self.name(s)
        return [partial, f"{self.name(s)}_nan"] if keeps_nan(s.kind, s.dtype) else [partial]

    def _strand_start(self, s: Accumulate, strand: int) -> list[str]:
        first, *nan = self._accumulators(s)
        kept = "int" if s.dtype == torch.bool else TYPES[s.dtype].value
        lines = [f"{kept} {first}_{strand} = {fold_of(s.kind, s.dtype).start};"]
        return lines + [f"int {name}_{strand} = 0;" for name in nan]

    def _strand_end(self, s: Accumulate, strand: int) -> list[str]:
        first, *nan = self._accumulators(s)
        text = fold_of(s.kind, s.dtype).combine.format(first, f"{first}_{strand}")
        return [f"{text};", *(f"{name} |= {name}_{strand};" for name in nan)]

    # --- blocks ------------------------------------------------------------------------------

    def _count(self) -> int | None:
        """Values folded into one result, None if unknown."""
        sizes = [constant_value(size) for _, size in self.loops]
        return None if None in sizes else math.prod(s or 0 for s in sizes)

    def _is_blocked(self, statement: Accumulate) -> bool:
        if not needs_blocks(statement.kind, statement.dtype):
            return False
        count = self._count()
        if self.kernel.lanes:
            short = _SHORT_LANE_BLOCK if statement.dtype is torch.float32 else _LANE_BLOCK
            return count is None or count > short
        return count is None or count > BLOCK or len(self.loops) > 1

    def block(self, level: int, innermost: bool, size: object) -> Block | None:
        """How the loop at a level is cut, if partial results are kept there."""
        blocked = [s for s in self.added if self._is_blocked(s) and s not in self.wide]
        if not blocked:
            return None
        if self.kernel.lanes:
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
        return self._cut(len(self.loops), _BLOCK_LENGTH, before, after)

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
        is_short = (self._count() or math.inf) <= _LANE_BLOCK
        length = _SHORT_LANE_BLOCK if is_short else _LANE_BLOCK
        return self._cut(1, max(1, length // inner), before, after)

    def _cut(self, level: int, step: int, before: list[str], after: list[str]) -> Block:
        symbol, size = self.loops[level - 1]
        limit = index_text(as_expr(size), self.sizes)
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
            lines = self._lane_frame if self.kernel.lanes else self._scalar_frame
            start, end = lines(statement)
            before += start
            after += end
        return before, after

    def _scalar_frame(self, s: Accumulate) -> tuple[list[str], list[str]]:
        name, ctype = self.name(s), TYPES[s.dtype].value
        if s.position is not None:
            return self._search_frame(s)
        fold = fold_of(s.kind, s.dtype)
        if self._is_blocked(s) or s in self.wide:
            wide = WIDER[s.dtype]
            declared = [f"{wide} {name}_sum = {fold.start};"]
            return declared, [f"const {ctype} {name} = ({ctype}){name}_sum;"]
        kept = "int" if s.dtype == torch.bool else ctype
        if keeps_nan(s.kind, s.dtype):
            nan = literal_text(Literal(math.nan, s.dtype))
            declared = [f"{kept} {name} = {fold.start};", f"int {name}_nan = 0;"]
            return declared, [f"if ({name}_nan) {name} = {nan};"]
        return [f"{kept} {name} = {fold.start};"], []

    def _search_frame(self, s: Accumulate) -> tuple[list[str], list[str]]:
        name, best = self.name(s), TYPES[s.body.dtype].value
        position = TYPES[self._position_dtype()].value
        self.declarations.append(f"alignas(64) {best} {name}_of[{STRIDE}];")
        self.declarations.append(f"alignas(64) {position} {name}_at_of[{STRIDE}];")
        start = f"{{ {name}_of[l] = {{}}; {name}_at_of[l] = -1; }}"
        test = takes(s.kind, s.body.dtype, False)
        taken = test.format(name, f"{name}_of[l]", f"{name}_at", f"{name}_at_of[l]")
        end = [
            f"{best} {name} = {name}_of[0];",
            f"i64 {name}_at = {name}_at_of[0];",
            f"for (i64 l = 1; l < {STRIDE}; ++l)",
            f"    if ({name}_at_of[l] >= 0 && ({taken}))",
            f"        {name} = {name}_of[l], {name}_at = {name}_at_of[l];",
        ]
        return [f"for (i64 l = 0; l < {STRIDE}; ++l) {start}"], end

    def _lane_frame(self, s: Accumulate) -> tuple[list[str], list[str]]:
        name, ctype = self.name(s), TYPES[s.dtype].value
        lanes = self.kernel.lanes
        declare = self.declarations
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
        if self.kernel.lanes:
            return "" if faults else "#pragma omp simd"
        return "#pragma omp simd" + self._clauses(0) + (" reduction(|:bad)" if faults else "")

    def _clauses(self, strand: int) -> str:
        text = ""
        suffix = f"_{strand}" if strand else ""
        for s in self.added:
            first, *nan = self._accumulators(s)
            text += f" reduction({fold_of(s.kind, s.dtype).clause}:{first}{suffix})"
            text += "".join(f" reduction(|:{name}{suffix})" for name in nan)
        return text


def _with_suffix(line: str, names: Sequence[str], strand: int) -> str:
    if not strand:
        return line
    pattern = "|".join(re.escape(name) for name in names)
    return re.sub(rf"\b({pattern})\b", rf"\1_{strand}", line)


def _for_lanes(statement: str) -> str:
    return f"for (i64 l = 0; l < last - first; ++l) {statement}"
