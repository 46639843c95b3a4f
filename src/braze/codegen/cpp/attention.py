"""The C++ function of a kernel of attention: queries by blocks, keys by tiles.

    for each block of queries: for each tile of keys, if one of its scores is not hidden:
        s = keys @ queries, a column a query
        s = the program's function of the score, its place and what it reads
        s = exp(s - the largest so far), what was summed so far is scaled
        o += s transposed @ values
    the block's results are o over the sums

No scores are in memory but those of one tile. A tile of which the program's mask hides all is
skipped: its condition is computed first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from braze.codegen.cpp.index import index_text, operand_text
from braze.codegen.cpp.operators import TYPES, cast_text
from braze.codegen.cpp.scope import CppScope, CppTerm
from braze.codegen.cpp.text import indented
from braze.ir.kernels.hidden_scores import visible_where
from braze.ir.kernels.schedule import AttentionProducts, Kernel, Matrix, Store, offset
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, floor_div

QUERIES, KEYS = 64, 64  # of a tile
_LANES = 16  # that columns are padded to
_ARGUMENTS = "char* const* p, const i64* sizes, const i64* c"


def attention_text(kernel: Kernel, sizes: Mapping[Symbol, str]) -> str:
    """The functions of a kernel that has `attention`, with NAME where its name belongs."""
    assert isinstance(kernel.attention, AttentionProducts)
    writer = _AttentionWriter(kernel, kernel.attention, sizes)
    return writer.range_function() + "\n" + writer.entry_function()


# --- private -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _AttentionWriter:
    kernel: Kernel
    attention: AttentionProducts
    sizes: Mapping[Symbol, str]

    def range_function(self) -> str:
        width, out = self.attention.query.width, self.attention.values.width
        columns = -(-out // _LANES) * _LANES
        score, faults = self._scores()
        lines = [
            f"static void NAME_range({_ARGUMENTS}, i64 lo, i64 hi, int* fault) {{",
            *indented([*self._size_names(), *self._parameters()], 1),
            f"    alignas(64) float q[{width * QUERIES}], s[{KEYS * QUERIES}];",
            f"    alignas(64) float o[{QUERIES * columns}], kept[{KEYS * max(width, columns)}];",
            f"    alignas(64) float most[{QUERIES}], sums[{QUERIES}], factors[{QUERIES}];",
            "    int bad = 0;",
            *indented(self._start(), 1),
            "    for (i64 t = lo; t < hi; ++t) {",
            *indented(self._block(width, columns), 2),
            f"        for (i64 begin = 0; begin < count; begin += {KEYS}) {{",
            f"            const i64 end = bz_min(begin + {KEYS}L, count);",
            *indented([] if faults else self._skip(), 3),
            *indented(self._tile(width, out, columns, score), 3),
            "        }",
            *indented(self._results(columns), 2),
            *indented(self._advance(), 2),
            "    }",
            "    if (bad) __atomic_store_n(fault, bad, __ATOMIC_RELAXED);",
            "}",
        ]
        return "\n".join(lines)

    def entry_function(self) -> str:
        tasks = " * ".join(index_text(as_expr(size), self.sizes) for _, size in self._tasks())
        lines = [
            f"static void NAME({_ARGUMENTS}, int threads, int* fault) {{",
            *indented(self._size_names(), 1),
            f"    const i64 tasks = {tasks};",
            "    bz_run(NAME_range, p, sizes, c, tasks, tasks, threads, fault);",
            "}",
        ]
        return "\n".join(lines)

    # --- the frame of the tasks ------------------------------------------------------------------

    def _size_names(self) -> list[str]:
        return [f"const i64 {name} = sizes[{name[1:]}];" for name in self.sizes.values()]

    def _parameters(self) -> list[str]:
        lines = []
        phase = self.kernel.phases[0]
        stored = {store.target for store in (*phase.body, *phase.row)}
        for number, buffer in enumerate(self.kernel.memory):
            const = "" if buffer in stored else "const "
            ctype = f"{const}{TYPES[buffer.dtype].memory}*"
            lines.append(f"{ctype} __restrict p{number} = ({ctype})p[{number}];")
        return lines

    def _tasks(self) -> list[tuple[str, Expr]]:
        """Names and counts of the loops that tasks are numbered by, outermost first."""
        *rows, (_, length) = self.kernel.rows
        blocks = floor_div(as_expr(length) + (QUERIES - 1), QUERIES)
        return [*((symbol.name, as_expr(size)) for symbol, size in rows), ("block", blocks)]

    def _start(self) -> list[str]:
        (name, _), *others = self._tasks()
        lines = ["i64 rest = lo;"]
        for other, size in reversed(others):
            text = operand_text(size, self.sizes)
            lines += [f"i64 {other} = rest % {text};", f"rest /= {text};"]
        return [*lines, f"i64 {name} = rest;"]

    def _advance(self) -> list[str]:
        (name, _), *others = self._tasks()
        text = f"++{name};"
        for other, size in others:
            limit = index_text(size, self.sizes)
            text = f"if (++{other} == {limit}) {{ {other} = 0; {text} }}"
        return [text]

    # --- a block of queries ----------------------------------------------------------------------

    def _block(self, width: int, columns: int) -> list[str]:
        """Where it begins and ends; its queries, transposed, with zeros beside them."""
        m, length = self.kernel.rows[-1]
        limit = index_text(as_expr(length), self.sizes)
        place, dim = self._element(self.attention.query, as_expr(m)), f"d * {QUERIES}"
        return [
            f"const i64 first = block * {QUERIES}L, last = bz_min(first + {QUERIES}L, {limit});",
            f"const i64 count = {index_text(as_expr(self.attention.keys_loop[1]), self.sizes)};",
            f"if (last - first < {QUERIES}) for (int i = 0; i < {width * QUERIES}; ++i) q[i] = 0;",
            f"for (i64 {m} = first; {m} < last; ++{m})",
            f"    for (i64 d = 0; d < {width}; ++d) q[{dim} + {m} - first] = {place};",
            f"for (int i = 0; i < {QUERIES}; ++i) most[i] = -__builtin_inff(), sums[i] = 0;",
            f"for (int i = 0; i < {QUERIES * columns}; ++i) o[i] = 0;",
        ]

    def _results(self, columns: int) -> list[str]:
        """What is stored of a block. A row that attends to nothing is zero, or no number."""
        store, (m, _) = self._store(), self.kernel.rows[-1]
        empty = "0.0f" if self.attention.empty_is_zero else '__builtin_nanf("")'
        place = index_text(offset(store.target, store.coordinates), self.sizes)
        dtype = store.target.dtype
        value = f"o[({m} - first) * {columns} + {self._out_symbol()}] * inverse"
        hidden = f"sums[{m} - first] == 0"  # the largest score of a row that sees one gives 1
        text = cast_text(f"({hidden} ? {empty} : {value})", torch.float32, dtype)
        out, size = self.kernel.phases[0].loops[-1]
        pointer = f"p{self.kernel.memory.index(store.target)}"
        return [
            f"for (i64 {m} = first; {m} < last; ++{m}) {{",
            f"    const float inverse = 1.0f / sums[{m} - first];",
            f"    for (i64 {out} = 0; {out} < {index_text(as_expr(size), self.sizes)}; ++{out})",
            f"        {pointer}[{place}] = {text};",
            *indented(self._row_stores(), 1),
            "}",
        ]

    def _row_stores(self) -> list[str]:
        """What is stored of a query's largest score and sum."""
        attention, lines = self.attention, []
        (m, _), scope = self.kernel.rows[-1], self._scope("u")
        names = {attention.most: "most", attention.sums: "sums"}
        scope.local = {
            buffer: lambda load: CppTerm(f"{names[load.buffer]}[{m} - first]", 2)
            for buffer in names
            if buffer is not None
        }
        for store in self.kernel.phases[0].row:
            value = scope.emit(store.value).text
            place = index_text(offset(store.target, store.coordinates), self.sizes)
            pointer = f"p{self.kernel.memory.index(store.target)}"
            lines.append(f"{pointer}[{place}] = {value};")
        outer, _, inner = scope.lines
        return [*outer, *inner, *lines]

    # --- a tile ----------------------------------------------------------------------------------

    def _tile(self, width: int, out: int, columns: int, score: list[str]) -> list[str]:
        keys, values = self.attention.keys, self.attention.values
        lines = self._rows_of(keys, "keys", width, width)
        lines += [
            f"bz_multiply(keys, keys_row, 1, q, {QUERIES}, s, {QUERIES}, end - begin, {QUERIES}, "
            f"{width}, false);",
            *score,
            f"bz_soften<{QUERIES}>(s, end - begin, most, sums, factors);",
            f"for (int i = 0; i < {QUERIES}; ++i)",
            f"    for (int j = 0; j < {columns}; ++j) o[i * {columns} + j] *= factors[i];",
            *self._rows_of(values, "values", out, columns),
            f"bz_multiply(s, 1, {QUERIES}, values, values_row, o, {columns}, {QUERIES}, {columns}, "
            "end - begin, true);",
        ]
        return lines

    def _rows_of(self, matrix: Matrix, name: str, width: int, columns: int) -> list[str]:
        """A pointer to the tile's rows of a matrix, and the distance of rows: where they are, or a
        copy where they lie otherwise, are of another dtype, or short of a number of lanes."""
        n, _ = self.attention.keys_loop
        is_plain = matrix.buffer.dtype == torch.float32 and constant_value(matrix.right) == 1
        if is_plain and width == columns:
            pointer = f"p{self.kernel.memory.index(matrix.buffer)}"
            start = matrix.place(as_expr(n), as_expr(0))
            at = index_text(start, self.sizes).replace(n.name, "begin")
            row = index_text(as_expr(matrix.down), self.sizes)
            return [f"const float* {name} = {pointer} + {at};", f"const i64 {name}_row = {row};"]
        element, cell = self._element(matrix, as_expr(n)), f"kept[({n} - begin) * {columns} + d]"
        return [
            f"for (i64 {n} = begin; {n} < end; ++{n}) {{",
            f"    for (i64 d = 0; d < {width}; ++d) {cell} = {element};",
            f"    for (i64 d = {width}; d < {columns}; ++d) {cell} = 0;",
            "}",
            f"const float* {name} = kept;",
            f"const i64 {name}_row = {columns};",
        ]

    def _skip(self) -> list[str]:
        """Go on with the next tile where the mask hides all of this one."""
        condition = visible_where(self.attention.score)
        if condition is None:
            return []
        scope = self._scope("w")
        term = scope.emit(condition)
        scope.lines[scope.depth].append(f"seen |= (int){term.text};")
        nest = self._nest(scope, "#pragma omp simd reduction(|:seen)", "    if (seen) break;")
        return ["int seen = 0;", *nest, "if (!seen) continue;"]

    def _scores(self) -> tuple[list[str], bool]:
        """The loops that apply the program's function; whether an index may be out of range."""
        scope = self._scope("v")
        term = scope.emit(self.attention.score)
        scope.lines[scope.depth].append(f"{self._cell()} = {term.text};")
        clause = " reduction(|:bad)" if scope.faults else ""
        return self._nest(scope, f"#pragma omp simd{clause}", ""), scope.faults

    def _nest(self, scope: CppScope, pragma: str, after: str) -> list[str]:
        (m, _), (n, _) = self.kernel.rows[-1], self.attention.keys_loop
        outer, middle, inner = scope.lines
        return [
            *outer,
            f"for (i64 {n} = begin; {n} < end; ++{n}) {{",
            *indented(middle, 1),
            f"    {pragma}",
            f"    for (i64 {m} = first; {m} < last; ++{m}) {{",
            *indented(inner, 2),
            "    }",
            *filter(None, [after]),
            "}",
        ]

    def _scope(self, prefix: str) -> CppScope:
        levels = {symbol: 0 for symbol, _ in self.kernel.rows[:-1]}
        levels |= {self.attention.keys_loop[0]: 1, self.kernel.rows[-1][0]: 2}
        pointers = {buffer: f"p{number}" for number, buffer in enumerate(self.kernel.memory)}
        local = {self.attention.scores: lambda load: CppTerm(self._cell(), 2)}
        return CppScope(levels, 2, pointers, local, self.sizes, prefix)

    def _cell(self) -> str:
        (m, _), (n, _) = self.kernel.rows[-1], self.attention.keys_loop
        return f"s[({n} - begin) * {QUERIES} + {m} - first]"

    # --- operands --------------------------------------------------------------------------------

    def _store(self) -> Store:
        (store,) = self.kernel.phases[0].body
        assert isinstance(store, Store)
        return store

    def _out_symbol(self) -> str:
        return self.kernel.phases[0].loops[-1][0].name

    def _element(self, matrix: Matrix, row: Expr) -> str:
        pointer = f"p{self.kernel.memory.index(matrix.buffer)}"
        place = index_text(matrix.place(row, as_expr(Symbol("d", 0, None))), self.sizes)
        return cast_text(f"{pointer}[{place}]", matrix.buffer.dtype, torch.float32)
