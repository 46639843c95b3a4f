"""The lines of a kernel of attention: a block of queries a program, keys by tiles.

    q = tl.load(...)                                    the block of queries
    begin, end, whole_begin, whole_end = ...            the tiles that the mask does not hide
    for x_block in range(whole_begin, whole_end):       without the mask
        s = tl.dot(q, tl.trans(k)); s = the function of the score
        p = exp(s - the largest so far), what was summed so far is scaled
        acc = tl.dot(p, v, acc)
    for the other tiles from begin to end: the same, with the mask
    tl.store(.., acc / total)

No scores are in memory. Programs that have most to do begin first: under a causal mask the last
blocks of queries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import final

import torch

from braze.codegen.triton.forms import forms_of_attention
from braze.codegen.triton.index import index_text, operand_text
from braze.codegen.triton.operators import HALVES, cast_text
from braze.codegen.triton.scope import TritonScope, TritonTerm
from braze.codegen.triton.tiling import Dimension, Tiling
from braze.codegen.triton.visibility import Side, visible_lines
from braze.ir.device_model import DeviceModel
from braze.ir.kernels.hidden_scores import (
    factor_of,
    unmasked,
    visible_where,
    with_joined_indices,
    with_visible,
)
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.schedule import AttentionProducts, Kernel, Matrix, Store, offset
from braze.shapes.expr import as_expr, constant_value

LOG2_E = 1.4426950408889634

# (queries, keys, warps, stages) of a program, by the widest matrix; the first is the likeliest.
_SHAPES = {
    64: ((64, 128, 4, 3), (64, 64, 4, 3), (128, 128, 8, 3), (128, 64, 4, 3)),
    128: ((128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3), (128, 64, 4, 3)),
    256: ((128, 32, 8, 2), (64, 64, 8, 2), (64, 32, 4, 2)),
}
_FLOAT_SHAPES = {
    64: ((64, 32, 4, 2), (32, 32, 4, 2), (64, 64, 8, 2)),
    128: ((32, 32, 4, 2), (64, 32, 8, 2)),
    256: ((16, 32, 4, 2), (32, 32, 8, 1)),
}


def attention_tilings(kernel: Kernel, wide: bool, device: DeviceModel) -> list[Tiling]:
    """The ways to compute an attention, the likeliest first: a block is smaller where there would
    not be a program for each processor."""
    attention = kernel.attention
    assert isinstance(attention, AttentionProducts)
    width = max(attention.query.width, attention.values.width)
    is_half = attention.query.buffer.dtype in HALVES
    table = _SHAPES if is_half else _FLOAT_SHAPES
    shapes = table[next(limit for limit in table if width <= limit)]
    *rows, last = kernel.rows
    found = []
    for queries, keys, warps, stages in shapes:
        batch = Dimension("z", tuple(rows), 0)
        tile = (
            Dimension("y", (last,), queries),
            Dimension("x", (attention.keys_loop,), keys, True),
        )
        found.append(Tiling((batch, *tile), "x", wide, warps, stages))
    few = [t for t in found if _programs(t) < device.processors]
    return [t for t in found if t not in few] + sorted(few, key=lambda t: t.dimensions[1].block)


def attention_lines(kernel: Kernel, scope: TritonScope, numerics: str) -> list[str]:
    """The function's lines; scope: of the function, before anything is computed in it."""
    assert isinstance(kernel.attention, AttentionProducts)
    return _TritonAttention(kernel, kernel.attention, scope, numerics).text()


# --- private -------------------------------------------------------------------------------------


def _programs(tiling: Tiling) -> float:
    """How many programs there are; of unknown sizes, enough."""
    total = 1
    for dimension in tiling.grid_dimensions:
        size = constant_value(dimension.size)
        if size is None:
            return math.inf
        total *= -(-size // (dimension.block or 1))
    return total


@final
@dataclass(slots=True)
class _TritonAttention:
    kernel: Kernel
    attention: AttentionProducts
    scope: TritonScope
    numerics: str
    lines: list[str] = field(default_factory=list)

    def text(self) -> list[str]:
        tiling, attention = self.scope.tiling, self.attention
        self.lines += program_lines(tiling, self.scope)
        self.lines += [*lanes("D", attention.query.width), *lanes("E", attention.values.width)]
        query = load_text(attention.query, self._m, "d_lane", self._mask("ym", "D"), self.scope)
        self.lines.append(f"q = {query}")
        has_whole = self._tiles()
        self.lines += [
            f"{self._m} = {self._m}[:, None]",
            *([] if tiling.dimensions[-2].is_exact else ["ym = ym[:, None]"]),
            "top = tl.full([YB], float('-inf'), tl.float32)",
            "total = tl.zeros([YB], tl.float32)",
            "acc = tl.zeros([YB, EB], tl.float32)",
        ]
        stages = f"num_stages={tiling.stages}"
        if has_whole:
            body = ["x_block = turn", *self._tile(True)]
            self._loop(f"tl.range(whole_begin, whole_end, {stages})", body)
        if self._condition is not None or not tiling.dimensions[-1].is_exact:
            head = ["x_block = begin + turn"]
            if has_whole:
                head.append("x_block += tl.where(x_block < whole_begin, 0, gap)")
            body = [*head, *self._tile(False)]
            self._loop(f"tl.range(0, end - begin{' - gap' * has_whole}, {stages})", body)
        self._results()
        return self.lines

    # --- what is computed of the score -----------------------------------------------------------

    @property
    def _m(self) -> str:
        return self.kernel.rows[-1][0].name

    @property
    def _condition(self) -> Scalar | None:
        return visible_where(self.attention.score)

    def _score(self, is_whole: bool) -> tuple[Scalar, float]:
        """What is computed of a tile, and what all of it is multiplied with in the exponent."""
        score = with_joined_indices(self.attention.score)
        visible, factor = factor_of(score if self._condition is None else unmasked(score))
        if self._condition is None or is_whole:
            return visible, factor
        return with_visible(score, visible), factor

    def _tiles(self) -> bool:
        """Lines that say between which tiles there is something to do; whether some of them are
        computed without the mask."""
        tiling = self.scope.tiling
        y, x = tiling.dimensions[-2:]
        if self._condition is None:
            self.lines += ["begin, end = 0, tiles", "whole_begin, whole_end = 0, count // XB"]
            self.lines.append("gap = whole_end")
            return True
        sides = (Side(y.loops[0], y.block), Side(x.loops[0], x.block))
        found = visible_lines(self._condition, *sides, self.scope)
        if found is None:
            self.lines.append("begin, end = 0, tiles")
            return False
        self.lines += [*found, "gap = whole_end - whole_begin"]
        return True

    def _tile(self, is_whole: bool) -> list[str]:
        """The lines of a tile; those that are the same in all are added to the function's."""
        attention, tiling = self.attention, self.scope.tiling
        *rest, x = tiling.dimensions
        (n, _), target = x.loops[0], self._store.target
        if is_whole:
            x = replace(x, loops=((n, x.block),))
        score, factor = self._score(is_whole)
        forms = forms_of_attention(score, target.dtype, self.numerics)
        inner = replace(tiling, dimensions=(*rest, x))
        scope = TritonScope(inner, self.scope.pointers, self.scope.sizes, forms)
        scope.local.update(self.scope.local)
        scope.local[attention.scores] = TritonTerm("s", frozenset("yx"))
        scope.narrow_indices = not tiling.wide
        scope.prefix = "f" if is_whole else "g"
        term = scope.emit(score)
        self.scope.checked |= scope.checked
        self.lines += scope.lines[0]
        mask = "" if x.is_exact else "xm"
        computed = [f"s = {scope.broadcast(term, frozenset('yx'))}"] if term.text != "s" else []
        keys, values = (
            load_text(matrix, "x_at", f"{lane.lower()}_lane", masks(mask, lane, matrix), scope)
            for matrix, lane in ((attention.keys, "D"), (attention.values, "E"))
        )
        return [
            f"x_at = {_wide('x_block', tiling)} * XB + tl.arange(0, XB)",
            f"{n.name} = x_at[None, :]",
            *([] if x.is_exact else ["xm = x_at < count"]),
            f"k = {keys}",
            f"s = tl.dot(q, tl.trans(k){self._precision})",
            *([] if x.is_exact else ["xm = xm[None, :]"]),
            *scope.lines[1],
            *computed,
            *([] if x.is_exact else ["s = tl.where(xm, s, float('-inf'))"]),
            *self._softened(factor * LOG2_E),
            *([] if x.is_exact else ["xm = x_at < count"]),
            f"v = {values}",
            f"acc = tl.dot(p.to(v.dtype), v, acc{self._precision})",
        ]

    def _softened(self, factor: float) -> list[str]:
        """A tile's exponentials, and what was summed before them scaled."""
        power = f"(s - shift[:, None]) * {factor}"
        if self._store.target.dtype in HALVES:
            power = f"s * {factor} - (shift * {factor})[:, None]"
        return [
            "peak = tl.maximum(top, tl.max(s, 1))",
            "shift = bz_shift(peak)",
            f"p = tl.exp2({power})",
            f"scale = tl.exp2((top - shift) * {factor})",
            "total = total * scale + tl.sum(p, 1)",
            "acc = acc * scale[:, None]",
            "top = peak",
        ]

    @property
    def _precision(self) -> str:
        return "" if self.attention.query.buffer.dtype in HALVES else ', input_precision="ieee"'

    # --- the frame -------------------------------------------------------------------------------

    @property
    def _store(self) -> Store:
        (store,) = self.kernel.phases[0].body
        assert isinstance(store, Store)
        return store

    def _mask(self, rows: str, lane: str) -> str:
        exact = self.scope.tiling.dimensions[-2].is_exact
        return masks("" if exact else rows, lane, self.attention.query)

    def _loop(self, over: str, body: list[str]) -> None:
        self.lines += [f"for turn in {over}:", *(f"    {line}" for line in body)]

    def _results(self) -> None:
        """What is stored of a block: a row that attends to nothing is zero, or no number."""
        store, values = self._store, self.attention.values
        empty = "0.0" if self.attention.empty_is_zero else "float('nan')"
        e = self.kernel.phases[0].loops[-1][0]
        place = index_text(offset(store.target, store.coordinates), self.scope.sizes)
        value = cast_text("out", torch.float32, store.target.dtype)
        parts = [] if self.scope.tiling.dimensions[-2].is_exact else ["ym"]
        parts += [] if is_power(values.width) else [f"({e.name} < {values.width})"]
        mask = f", {' & '.join(parts)}" if parts else ""
        pointer = self.scope.pointers[store.target]
        self.lines += [
            f"{e.name} = e_lane[None, :]",
            f"out = tl.where((total == 0)[:, None], {empty}, acc * (1.0 / total)[:, None])",
            f"tl.store({pointer} + {place} + tl.zeros([YB, EB], tl.int32), {value}{mask})",
        ]
        if self.kernel.phases[0].row:
            self._row_results()

    def _row_results(self) -> None:
        """What is stored of each row's largest score and sum."""
        attention, tiling = self.attention, self.scope.tiling
        *rows, y, _ = tiling.dimensions
        _, factor = self._score(True)
        forms = {} if self.numerics != "eager" else self.scope.forms
        inner = replace(tiling, dimensions=(*rows, y), reduced="")
        scope = TritonScope(inner, self.scope.pointers, self.scope.sizes, forms, prefix="h")
        scope.local.update(self.scope.local)
        for buffer, text in ((attention.most, f"top * {factor}"), (attention.sums, "total")):
            if buffer is not None:
                scope.local[buffer] = scope.assign(text, frozenset("y"))
        for store in self.kernel.phases[0].row:
            scope.store(store.target, store.coordinates, scope.emit(store.value))
        self.lines += [
            f"{self._m} = own_low + tl.arange(0, YB)",
            *([] if y.is_exact else [f"ym = {self._m} < length"]),
            *scope.lines[0],
        ]


# --- shared with the gradients -------------------------------------------------------------------


def program_lines(tiling: Tiling, scope: TritonScope) -> list[str]:
    """Which block a program computes: its points `own_low` to `own_high`, in one dimension; rows of
    the batch by their names; `length`, `count` and `tiles`."""
    *_, y, x = tiling.dimensions
    (m, length), (_, count) = y.loops[0], x.loops[0]
    rows = [loop for d in tiling.dimensions[:-2] for loop in d.loops]
    total = as_expr(1)
    for _, size in rows:
        total = total * as_expr(size)
    batches = operand_text(total, scope.sizes)
    lines = [
        f"pid = {_wide('tl.program_id(0)', tiling)}",
        f"length = {index_text(as_expr(length), scope.sizes)}",
        f"count = {index_text(as_expr(count), scope.sizes)}",
        f"tiles = {_narrow(x)}",
        "blocks = (length + YB - 1) // YB",
        f"y_block = blocks - 1 - pid // {batches}",
        f"z = pid % {batches}",
    ]
    for number, (symbol, size) in reversed(list(enumerate(rows))):
        divisor = operand_text(as_expr(size), scope.sizes)
        lines.append(f"{symbol.name} = z % {divisor}" if number else f"{symbol.name} = z")
        lines += [f"z = z // {divisor}"] if number else []
    return [
        *lines,
        "own_low = y_block * YB",
        "own_high = tl.minimum(own_low + YB, length) - 1",
        f"{m.name} = own_low + tl.arange(0, YB)",
        *([] if y.is_exact else [f"ym = {m.name} < length"]),
    ]


def lanes(name: str, width: int) -> list[str]:
    """The columns of a block as wide as a matrix, of the next power of two."""
    block = max(16, 1 << (width - 1).bit_length())
    return [f"{name}B: tl.constexpr = {block}", f"{name.lower()}_lane = tl.arange(0, {name}B)"]


def is_power(width: int) -> bool:
    """Whether a block as wide as a matrix has no columns beside it."""
    return width >= 16 and width & (width - 1) == 0


def masks(rows: str, lane: str, matrix: Matrix) -> str:
    """The condition that elements of a block exist."""
    parts = [f"{rows}[:, None]"] if rows else []
    parts += [] if is_power(matrix.width) else [f"({lane.lower()}_lane < {matrix.width})[None, :]"]
    return " & ".join(parts)


def load_text(matrix: Matrix, rows: str, columns: str, mask: str, scope: TritonScope) -> str:
    """A block of a matrix, zero where there is none."""
    steps = [index_text(as_expr(step), scope.sizes) for step in (matrix.down, matrix.right)]
    at = (f"{rows}[:, None]", f"{columns}[None, :]")
    parts = [a if step == "1" else f"{a} * {step}" for a, step in zip(at, steps, strict=True)]
    start = index_text(matrix.start, scope.sizes)
    pointer = f"{scope.pointers[matrix.buffer]}{'' if start == '0' else f' + {start}'}"
    return f"tl.load({pointer} + ({' + '.join(parts)}){f', {mask}, 0.0' if mask else ''})"


def _wide(text: str, tiling: Tiling) -> str:
    return f"{text}.to(tl.int64)" if tiling.wide else text


def _narrow(x: Dimension) -> str:
    text = "(count + XB - 1) // XB"
    return text if constant_value(x.size) is not None else f"({text}).to(tl.int32)"
