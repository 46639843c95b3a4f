"""The lines of a kernel of attention's backward: a block of queries or keys a program, the others
by tiles.

    k = tl.load(...); v = tl.load(...)                  the block of keys
    begin, end, whole_begin, whole_end = ...            the tiles that the mask does not hide
    for x_block in range(whole_begin, whole_end):       without the mask
        q = tl.load(...); t = tl.load(...)              queries, and the gradients that come in
        s0 = tl.dot(k, tl.trans(q)); s1 = tl.dot(v, tl.trans(t))
        acc0 = tl.dot(probability(s0), t, acc0)
        acc1 = tl.dot(derivative(s0, s1), q, acc1)
    for the other tiles from begin to end: the same, with the mask
    tl.store(.., acc0); tl.store(.., acc1)

Each sum is computed by one program: nothing is added up in memory, and results are the same in
every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias, final

import torch

from braze.codegen.triton.attention import (
    LOG2_E,
    is_power,
    load_text,
    masks,
    program_lines,
)
from braze.codegen.triton.forms import forms_of_attention
from braze.codegen.triton.index import index_text
from braze.codegen.triton.operators import HALVES, cast_text
from braze.codegen.triton.scope import TritonScope, TritonTerm
from braze.codegen.triton.tiling import Dimension, Tiling
from braze.codegen.triton.visibility import Side, visible_lines
from braze.ir.device_model import DeviceModel
from braze.ir.kernels.loops import Apply, Guarded, Literal, Scalar
from braze.ir.kernels.scalars import rebuild, replace_children
from braze.ir.kernels.schedule import (
    AttentionGradients,
    Kernel,
    Loop,
    Matrix,
    Store,
    TileProduct,
    offset,
)
from braze.shapes.expr import constant_value

_Shapes: TypeAlias = Mapping[int, tuple[tuple[int, int, int, int], ...]]

# (own, walked, warps, stages) of a program, by the widest matrix; the first is the likeliest. Of
# keys with queries walked, and of queries with keys walked.
_OVER_QUERIES: _Shapes = {
    64: ((64, 128, 4, 2), (64, 64, 4, 3), (128, 128, 8, 2), (128, 64, 8, 3)),
    128: ((64, 64, 4, 2), (128, 64, 8, 2), (64, 32, 4, 3)),
    256: ((64, 32, 8, 1), (32, 32, 4, 1)),
}
_OVER_KEYS: _Shapes = {
    64: ((64, 128, 4, 2), (64, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2)),
    128: ((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 3)),
    256: ((64, 32, 8, 1), (32, 32, 4, 1)),
}
_FLOATS: _Shapes = {
    64: ((32, 32, 4, 1), (64, 32, 8, 1)),
    128: ((32, 32, 4, 1), (16, 32, 4, 1)),
    256: ((16, 16, 4, 1), (32, 16, 8, 1)),
}


def gradient_tilings(kernel: Kernel, wide: bool, device: DeviceModel) -> list[Tiling]:
    """The ways to compute sums of an attention's backward, the likeliest first."""
    attention = _of(kernel)
    matrices = _matrices(attention)
    width = max(matrix.width for matrix in matrices)
    own, walked = _loops(kernel)
    table = _OVER_KEYS if own == attention.queries else _OVER_QUERIES
    if matrices[0].buffer.dtype not in HALVES:
        table = _FLOATS
    shapes = table[next(limit for limit in table if width <= limit)]
    *rows, _ = kernel.rows
    found = []
    for block, tile, warps, stages in shapes:
        dimensions = (
            Dimension("z", tuple(rows), 0),
            Dimension("y", (own,), block),
            Dimension("x", (walked,), tile, True),
        )
        found.append(Tiling(dimensions, "x", wide, warps, stages))
    return found


def gradient_lines(kernel: Kernel, scope: TritonScope, numerics: str) -> list[str]:
    """The function's lines; scope: of the function, before anything is computed in it."""
    return _TritonGradients(kernel, _of(kernel), scope, numerics).text()


# --- private -------------------------------------------------------------------------------------


def _of(kernel: Kernel) -> AttentionGradients:
    assert isinstance(kernel.attention, AttentionGradients)
    return kernel.attention


def _loops(kernel: Kernel) -> tuple[Loop, Loop]:
    """The loop of a program's own points, and the one that it walks."""
    attention, own = _of(kernel), kernel.rows[-1]
    return own, attention.keys if own[0] is attention.queries[0] else attention.queries


def _matrices(attention: AttentionGradients) -> list[Matrix]:
    found = [m for product in attention.products for m in (product.rows, product.columns)]
    return [*found, *(each.matrix for each in attention.sums)]


@final
@dataclass(slots=True)
class _TritonGradients:
    """matrices: those that were loaded, and the names of their blocks; walked, by what they are."""

    kernel: Kernel
    attention: AttentionGradients
    scope: TritonScope
    numerics: str
    lines: list[str] = field(default_factory=list)
    widths: dict[int, str] = field(default_factory=dict)

    def text(self) -> list[str]:
        tiling = self.scope.tiling
        self.lines += program_lines(tiling, self.scope)
        for number, width in enumerate(sorted({m.width for m in _matrices(self.attention)})):
            self.widths[width] = f"lane{number}"
            block = max(16, 1 << (width - 1).bit_length())
            self.lines += [
                f"LANE{number}: tl.constexpr = {block}",
                f"lane{number} = tl.arange(0, LANE{number})",
            ]
        own = [self._sides(product)[0] for product in self.attention.products]
        for number, matrix in enumerate(own):
            text = self._loaded(matrix, self._own, "" if self._y.is_exact else "ym", self.scope)
            self.lines.append(f"own{number} = {text}")
        has_whole = self._tiles()
        self.lines += [
            f"{self._own} = {self._own}[:, None]",
            *([] if self._y.is_exact else ["ym = ym[:, None]"]),
            *(
                f"acc{number} = tl.zeros([YB, {self._lane(each.matrix).upper()}], tl.float32)"
                for number, each in enumerate(self.attention.sums)
            ),
        ]
        self._loops(has_whole)
        self._results()
        return self.lines

    # --- which tiles -----------------------------------------------------------------------------

    @property
    def _y(self) -> Dimension:
        return self.scope.tiling.dimensions[-2]

    @property
    def _x(self) -> Dimension:
        return self.scope.tiling.dimensions[-1]

    @property
    def _own(self) -> str:
        return self.kernel.rows[-1][0].name

    def _tiles(self) -> bool:
        """Lines that say between which tiles there is something to do; whether some of them are
        computed without the mask."""
        visible = self.attention.visible
        if visible is None:
            self.lines += ["begin, end = 0, tiles", "whole_begin, whole_end = 0, count // XB"]
            self.lines.append("gap = whole_end")
            return True
        sides = (Side(self._y.loops[0], self._y.block), Side(self._x.loops[0], self._x.block))
        found = visible_lines(visible, *sides, self.scope)
        if found is None:
            self.lines.append("begin, end = 0, tiles")
            return False
        self.lines += [*found, "gap = whole_end - whole_begin"]
        return True

    def _loops(self, has_whole: bool) -> None:
        stages = f"num_stages={self.scope.tiling.stages}"
        if has_whole:
            body = ["x_block = turn", *self._tile(True)]
            self._loop(f"tl.range(whole_begin, whole_end, {stages})", body)
        if self.attention.visible is None and self._x.is_exact:
            return
        head = ["x_block = begin + turn"]
        if has_whole:
            head.append("x_block += tl.where(x_block < whole_begin, 0, gap)")
        body = [*head, *self._tile(False)]
        self._loop(f"tl.range(0, end - begin{' - gap' * has_whole}, {stages})", body)

    def _loop(self, over: str, body: list[str]) -> None:
        self.lines += [f"for turn in {over}:", *(f"    {line}" for line in body)]

    # --- a tile ----------------------------------------------------------------------------------

    def _tile(self, is_whole: bool) -> list[str]:
        """The lines of a tile; those that are the same in all are added to the function's."""
        attention, tiling = self.attention, self.scope.tiling
        *rest, x = tiling.dimensions
        (n, _) = x.loops[0]
        if is_whole:
            x = replace(x, loops=((n, x.block),))
        weights = [self._weight(each.weight, is_whole) for each in attention.sums]
        dtype = attention.sums[0].matrix.buffer.dtype
        forms = forms_of_attention(weights[-1], dtype, self.numerics)
        inner = replace(tiling, dimensions=(*rest, x))
        scope = TritonScope(inner, self.scope.pointers, self.scope.sizes, forms)
        scope.local.update(self.scope.local)
        scope.narrow_indices = not tiling.wide
        scope.prefix = "f" if is_whole else "g"
        mask = "" if x.is_exact else "xm"
        loaded: dict[Matrix, str] = {}
        lines: list[str] = []
        for number, product in enumerate(attention.products):
            scope.local[product.target] = TritonTerm(f"s{number}", frozenset("yx"))
            name = self._walked(self._sides(product)[1], mask, loaded, lines, scope)
            lines.append(f"s{number} = tl.dot(own{number}, tl.trans({name}){self._precision})")
        terms = [scope.emit(weight) for weight in weights]
        self.scope.checked |= scope.checked
        self.lines += scope.lines[0]
        names = [self._walked(e.matrix, mask, loaded, lines, scope) for e in attention.sums]
        lines += [] if x.is_exact else ["xm = xm[None, :]"]
        lines += scope.lines[1]
        for number, (term, name) in enumerate(zip(terms, names, strict=True)):
            value = scope.broadcast(term, frozenset("yx"))
            if not x.is_exact:
                value = f"tl.where(xm, {value}, 0.0)"
            dot = f"tl.dot(({value}).to({name}.dtype), {name}, acc{number}{self._precision})"
            lines.append(f"acc{number} = {dot}")
        block = "x_block.to(tl.int64)" if tiling.wide else "x_block"
        return [
            f"x_at = {block} * XB + tl.arange(0, XB)",
            f"{n.name} = x_at[None, :]",
            *([] if x.is_exact else ["xm = x_at < count"]),
            *lines,
        ]

    def _weight(self, weight: Scalar, is_whole: bool) -> Scalar:
        """A weight, by exponentials of two, where all is visible without the mask."""
        visible = self.attention.visible

        def replaced(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
            if visible is not None and is_whole and isinstance(node, (Apply, Guarded)):
                if isinstance(node, Guarded) and node.condition == visible:
                    return below(node.value)
                if isinstance(node, Apply) and node.op == "where" and node.operands[0] == visible:
                    return below(node.operands[1])
            if self.numerics != "eager" and isinstance(node, Apply) and node.op == "exp":
                return _power_of_two(replace_children(node.operands[0], below))
            return replace_children(node, below)

        return rebuild(weight, replaced)

    def _walked(
        self,
        matrix: Matrix,
        mask: str,
        loaded: dict[Matrix, str],
        lines: list[str],
        scope: TritonScope,
    ) -> str:
        """The name of a tile's rows of a matrix, which are loaded once."""
        if matrix not in loaded:
            loaded[matrix] = f"tile{len(loaded)}"
            lines.append(f"{loaded[matrix]} = {self._loaded(matrix, 'x_at', mask, scope)}")
        return loaded[matrix]

    def _loaded(self, matrix: Matrix, rows: str, mask: str, scope: TritonScope) -> str:
        lane = self._lane(matrix)
        text = masks(mask, lane, matrix).replace(f"{lane}_lane", lane)
        return load_text(matrix, rows, lane, text, scope)

    def _lane(self, matrix: Matrix) -> str:
        return self.widths[matrix.width]

    def _sides(self, product: TileProduct) -> tuple[Matrix, Matrix]:
        """A product's matrix of the program's own points, and the one that it walks."""
        rows, columns = product.rows, product.columns
        is_queries = self.kernel.rows[-1][0] is self.attention.queries[0]
        return (rows, columns) if is_queries else (columns, rows)

    @property
    def _precision(self) -> str:
        is_half = _matrices(self.attention)[0].buffer.dtype in HALVES
        return "" if is_half else ', input_precision="ieee"'

    # --- what is stored --------------------------------------------------------------------------

    def _results(self) -> None:
        for number, phase in enumerate(self.kernel.phases):
            (store,) = phase.body
            assert isinstance(store, Store)
            (e, width) = phase.loops[-1]
            lane = self.widths[constant_value(width) or 0]
            place = index_text(offset(store.target, store.coordinates), self.scope.sizes)
            parts = [] if self._y.is_exact else ["ym"]
            parts += [] if is_power(constant_value(width) or 0) else [f"({e.name} < {width})"]
            mask = f", {' & '.join(parts)}" if parts else ""
            value = cast_text(f"acc{number}", torch.float32, store.target.dtype)
            self.lines += [
                f"{e.name} = {lane}[None, :]",
                f"tl.store({self.scope.pointers[store.target]} + {place}, {value}{mask})",
            ]


def _power_of_two(exponent: Scalar) -> Scalar:
    """exp(x) as 2 to the power of a multiple of x; of a difference of which the first part is
    hidden somewhere, zero there."""
    if isinstance(exponent, Apply) and exponent.op == "sub":
        first, second = exponent.operands
        if isinstance(first, Apply) and first.op == "where" and _is_hidden(first.operands[2]):
            power = _power_of_two(Apply("sub", (first.operands[1], second), exponent.dtype))
            zero = Literal(0.0, exponent.dtype)
            return Apply("where", (first.operands[0], power, zero), exponent.dtype)
        scaled = tuple(_scaled(part) for part in (first, second))
        return Apply("exp2", (Apply("sub", scaled, exponent.dtype),), exponent.dtype)
    return Apply("exp2", (_scaled(exponent),), exponent.dtype)


def _is_hidden(scalar: Scalar) -> bool:
    return isinstance(scalar, Literal) and scalar.value == -float("inf")


def _scaled(scalar: Scalar) -> Scalar:
    """A value times log2(e), as one factor with a number that it is multiplied with."""
    factor = LOG2_E
    if isinstance(scalar, Apply) and scalar.op == "mul":
        first, second = scalar.operands
        if isinstance(second, Literal):
            scalar, factor = first, factor * float(second.value)
    return Apply("mul", (scalar, Literal(factor, scalar.dtype)), scalar.dtype)
