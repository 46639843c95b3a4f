"""Which tiles of scores a mask hides all of, and which none of, as lines of Triton.

    where(b3[i1] == b3[r0] and i1 >= r0, .., -inf)
becomes, for a program's rows i1 and all tiles of r0 at once,
    may  = (low of b3[i1] <= high of b3[tile]) & (low of b3[tile] <= high of b3[i1])
         & (high of i1 >= low of the tile)
    must = (all four bounds are equal) & (low of i1 >= high of the tile)

The condition is evaluated over intervals: what depends on rows alone, or on columns alone, by its
least and greatest value there, everything else by the rules of interval arithmetic. It is sound,
not tight: of what has no rule here a tile may be seen and is not known to be seen whole.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias, final

import torch

from braze.codegen.triton.index import index_text
from braze.codegen.triton.scope import TritonScope
from braze.codegen.triton.tiling import Dimension, Tiling
from braze.frozen import frozen
from braze.ir.kernels.loops import Apply, Index, Literal, Load, Scalar
from braze.ir.kernels.scalars import walk
from braze.ir.kernels.schedule import Loop
from braze.shapes.expr import Expr, Symbol, symbols

TILES = 128  # looked at together

# Texts of two Triton values: the least and greatest one, or whether it may be and is always true.
_Pair: TypeAlias = tuple[str, str]
_NUMBERS = (torch.int64, torch.int32)
_DECIDED = {
    "lt": ("({a} < {d})", "({b} < {c})"),
    "le": ("({a} <= {d})", "({b} <= {c})"),
    "gt": ("({b} > {c})", "({a} > {d})"),
    "ge": ("({b} >= {c})", "({a} >= {d})"),
    "eq": ("(({a} <= {d}) & ({c} <= {b}))", "(({a} == {d}) & ({c} == {b}))"),
    "ne": ("(({a} != {d}) | ({c} != {b}))", "(({a} > {d}) | ({c} > {b}))"),
}


@final
@frozen
class Side:
    """One axis of a tile of scores: its loop, and how many points of it a tile has."""

    loop: Loop
    block: int


def visible_lines(
    condition: Scalar, own: Side, walked: Side, outer: TritonScope
) -> list[str] | None:
    """Lines that compute `begin` and `end`, between which all tiles lie that may be seen, and
    `whole_begin` and `whole_end`, between which none is hidden in part; None: nothing is known.

    own: the axis of which the program has the points from `own_low` to `own_high`, which are
    `own_at`, with `own_mask` where points may be missing; walked: the axis of `count` points that
    is cut into `tiles`. outer: of the function.
    """
    intervals = _Intervals(own, walked, outer)
    try:
        may, must = intervals.truth(condition)
    except _NoInterval:
        return None
    (symbol, _), block = walked.loop, walked.block
    inside = [
        "t = chunk + tl.arange(0, TB)",
        f"t_low = t * {block}",
        f"t_high = tl.minimum(t_low + {block}, count) - 1",
    ]
    if intervals.reads_walked:
        inside += [
            f"{symbol.name} = chunk * {block} + tl.arange(0, TB * {block})",
            f"xm = {symbol.name} < count",
        ]
    inside += [
        *intervals.walked_lines,
        f"may = {may} & (t < tiles)",
        "begin = tl.minimum(begin, tl.min(tl.where(may, t, tiles)))",
        "end = tl.maximum(end, tl.max(tl.where(may, t + 1, 0)))",
        f"must = {must} & (t < count // {block})",
        "whole_begin = tl.minimum(whole_begin, tl.min(tl.where(must, t, tiles)))",
        "stop = tl.where(must | (t < whole_begin), tiles, t)",
        "whole_end = tl.minimum(whole_end, tl.min(stop))",
    ]
    return [
        f"TB: tl.constexpr = {TILES}",
        *intervals.own_lines,
        "begin, end, whole_begin, whole_end = tiles, 0, tiles, tiles",
        "for chunk in range(0, tiles, TB):",
        *(f"    {line}" for line in inside),
        "whole_begin = tl.minimum(whole_begin, end)",
        "whole_end = tl.maximum(tl.minimum(whole_end, end), whole_begin)",
        "begin = tl.minimum(begin, end)",
    ]


# --- private -------------------------------------------------------------------------------------


class _NoInterval(Exception):
    """A condition of which intervals say nothing."""


@dataclass(slots=True)
class _Intervals:
    """own_lines: before the loop over chunks; walked_lines: in it."""

    own: Side
    walked: Side
    outer: TritonScope
    own_lines: list[str] = field(default_factory=list)
    walked_lines: list[str] = field(default_factory=list)
    reads_walked: bool = False
    scopes: dict[str, TritonScope] = field(default_factory=dict)
    names: int = 0

    def truth(self, scalar: Scalar) -> _Pair:
        """Whether it may be true in a tile, and whether it is everywhere."""
        sides = self._sides(scalar)
        if isinstance(scalar, Literal):
            return (str(bool(scalar.value)),) * 2
        if isinstance(scalar, Apply) and scalar.op in ("and", "or"):
            return self._joined(scalar)
        if isinstance(scalar, Apply) and scalar.op == "not":
            may, must = self.truth(scalar.operands[0])
            return _negated(must), _negated(may)
        if isinstance(scalar, Apply) and scalar.op in _DECIDED:
            try:
                (a, b), (c, d) = map(self.interval, scalar.operands)
                may, must = _DECIDED[scalar.op]
                return may.format(a=a, b=b, c=c, d=d), must.format(a=a, b=b, c=c, d=d)
            except _NoInterval:
                if len(sides) > 1:
                    raise
        if len(sides) > 1 or scalar.dtype != torch.bool:
            raise _NoInterval
        low, high = self._extremes(scalar, sides)
        return f"({high} != 0)", f"({low} != 0)"

    def interval(self, scalar: Scalar) -> _Pair:
        """The least and the greatest value in a tile."""
        if scalar.dtype not in _NUMBERS:
            raise _NoInterval
        if isinstance(scalar, Literal):
            return str(scalar.value), str(scalar.value)
        if isinstance(scalar, Index):
            found = self._of_index(scalar.expr)
            if found is not None:
                return found
        if isinstance(scalar, Apply) and scalar.op in ("add", "sub", "neg", "abs"):
            try:
                return self._computed(scalar)
            except _NoInterval:
                pass
        if len(sides := self._sides(scalar)) > 1:
            raise _NoInterval
        return self._extremes(scalar, sides)

    # --- private ---------------------------------------------------------------------------------

    def _joined(self, scalar: Apply) -> _Pair:
        """Of `and` what one operand says is enough to hide a tile, of `or` to see it whole."""
        found: list[_Pair] = []
        for operand in scalar.operands:
            try:
                found.append(self.truth(operand))
            except _NoInterval:
                found.append(("True", "False"))
        if all(pair == ("True", "False") for pair in found):
            raise _NoInterval
        sign = "&" if scalar.op == "and" else "|"
        texts = [f"({one} {sign} {other})" for one, other in zip(*found, strict=True)]
        return texts[0], texts[1]

    def _computed(self, scalar: Apply) -> _Pair:
        pairs = [self.interval(operand) for operand in scalar.operands]
        (a, b), (c, d) = pairs[0], pairs[-1]
        if scalar.op == "add":
            return f"({a} + {c})", f"({b} + {d})"
        if scalar.op == "sub":
            return f"({a} - {d})", f"({b} - {c})"
        if scalar.op == "neg":
            return f"(-{b})", f"(-{a})"
        least = f"tl.maximum(tl.maximum({a}, -({b})), 0)"
        return least, f"tl.maximum(-({a}), {b})"

    def _of_index(self, expr: Expr) -> _Pair | None:
        """Of sums of multiples of the loops' symbols."""
        moves = {self.own.loop[0]: "own", self.walked.loop[0]: "t"}
        parts: tuple[list[str], list[str]] = ([], [])
        rest = []
        for monomial, factor in expr.terms:
            if len(monomial) == 1 and isinstance(monomial[0], Symbol) and monomial[0] in moves:
                ends = [f"{moves[monomial[0]]}_{end} * {factor}" for end in ("low", "high")]
                for part, text in zip(parts, ends if factor > 0 else ends[::-1], strict=True):
                    part.append(text)
            elif symbols(Expr(((monomial, factor),))) & {*moves}:
                return None
            else:
                rest.append((monomial, factor))
        fixed = [index_text(Expr(tuple(rest)), self.outer.sizes)] if rest else []
        low, high = (" + ".join([*part, *fixed]) or "0" for part in parts)
        return f"({low})", f"({high})"

    def _sides(self, scalar: Scalar) -> frozenset[str]:
        """The axes that it varies along."""
        found: set[Symbol] = set()
        for node in walk(scalar):
            if isinstance(node, Index):
                found |= symbols(node.expr)
            if isinstance(node, Load):
                found |= {s for c in node.coordinates if isinstance(c, Expr) for s in symbols(c)}
                if node.buffer in self.outer.local:
                    raise _NoInterval  # of the scores themselves
        sides = {"own": self.own.loop[0], "walked": self.walked.loop[0]}
        return frozenset(name for name, symbol in sides.items() if symbol in found)

    def _extremes(self, scalar: Scalar, sides: Collection[str]) -> _Pair:
        """Of what depends on one axis at most: it is evaluated there."""
        scope = self._scope("walked" if "walked" in sides else "own")
        lines = self.walked_lines if "walked" in sides else self.own_lines
        term = scope.emit(scalar)
        lines += scope.lines[0]
        scope.lines[0].clear()
        if not sides:
            text = f"{term.text}.to(tl.int32)" if scalar.dtype == torch.bool else term.text
            return text, text
        self.reads_walked |= "walked" in sides
        text = f"{term.text}.to(tl.int32)" if scalar.dtype == torch.bool else term.text
        mask = scope.mask(term.along)
        bits = 31 if scalar.dtype in (torch.bool, torch.int32) else 63
        found = []
        for fold, worst in (("min", 2**bits - 1), ("max", -(2**bits))):
            inside = f"tl.where({mask}, {text}, {worst})" if mask else text
            if "walked" in sides:
                inside = f"tl.reshape({inside}, [TB, {self.walked.block}])"
            found.append(f"tl.{fold}({inside}{', 1' if 'walked' in sides else ''})")
        return self._assigned(lines, found[0]), self._assigned(lines, found[1])

    def _scope(self, side: str) -> TritonScope:
        if side not in self.scopes:
            axis = self.own if side == "own" else self.walked
            name, block = ("y", axis.block) if side == "own" else ("x", axis.block * TILES)
            fixed = tuple(d for d in self.outer.tiling.dimensions if not d.block)
            none = () if fixed else (Dimension("z", (), 0),)
            dimensions = (*fixed, *none, Dimension(name, (axis.loop,), block))
            tiling = Tiling(dimensions, "", self.outer.tiling.wide, 4)
            scope = TritonScope(tiling, self.outer.pointers, self.outer.sizes)
            scope.prefix = side[0]
            self.scopes[side] = scope
        return self.scopes[side]

    def _assigned(self, lines: list[str], text: str) -> str:
        name = f"seen{self.names}"
        self.names += 1
        lines.append(f"{name} = {text}")
        return name


def _negated(text: str) -> str:
    always = {"True": "False", "False": "True"}
    return always.get(text, f"(~{text})")
