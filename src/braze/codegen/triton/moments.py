"""The sum of a row and that of squares around its mean, where several programs share the row.

    for r: t = sum of v                          each program, of its part: t, and the squares
    mean = t / n                        ->       around c = t / part; they meet once
    for r: s = sum of (v - mean) ** 2

The row's squares are those of the parts, and what the parts' means are apart from the row's (Chan,
Golub and LeVeque, Updating formulae and a pairwise algorithm for computing sample variances, 1979).
c is rounded, so the sum of v - c is no zero; it is told, too: without it, rows that a thousand lies
around of had variances wrong by 180 units in the last place, with it by one, as in two walks. Both
are one reduction: of two, the compiler kept what each adds up in registers of its own, 103 a thread
of a batch norm's, not 64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from braze.codegen.triton.cost import power_of_two
from braze.codegen.triton.scope import Dimensions, TritonScope, TritonTerm
from braze.frozen import frozen
from braze.ir.kernels.loops import Apply, Buffer, Cast, Literal, Load, Scalar
from braze.ir.kernels.schedule import Accumulate, Phase, Spread, row_points


@frozen
class Moments:
    """total: the sum of `value`; squares: that of (value - total / size) ** 2."""

    total: Accumulate
    squares: Accumulate
    value: Scalar
    size: int


def moments_of(first: Phase, second: Phase) -> dict[Accumulate, Moments]:
    """The sums of squares of a phase, around means of what the phase before summed up."""
    totals = {s.target: s for s in first.body if isinstance(s, Accumulate) and s.kind == "sum"}
    stored = {store.target: store.value for store in first.row}
    size = row_points(first.loops)
    found: dict[Accumulate, Moments] = {}
    for statement in second.body:
        if size is None or not isinstance(statement, Accumulate) or statement.kind != "sum":
            continue
        made = _moments(statement, totals, stored, size)
        if made is not None and all(made.total is not other.total for other in found.values()):
            found[statement] = made
    return found


@dataclass(slots=True)
class MomentsFold:
    """Of a part of a row, and of the row."""

    moments: Moments
    scope: TritonScope
    spread: Spread
    axis: int
    rows: Dimensions
    everything: Dimensions

    @property
    def targets(self) -> tuple[Buffer, Buffer]:
        """What is held."""
        return self.moments.total.target, self.moments.squares.target

    neutral = ("0.0", "0.0", "0.0")

    def held(self) -> tuple[TritonTerm, TritonTerm, TritonTerm]:
        """Of a part: its sum; without its mean, the sum of what is left, and of the squares."""
        scope, axis = self.scope, self.axis
        value = scope.broadcast(scope.emit(self.moments.value), self.everything)
        total = scope.assign(f"tl.sum({self._of_points(value)}, {axis})", self.rows)
        far = self._of_points(f"{value} - {total.text} * {self._share('r_part')}")
        gap = scope.assign(far, self.everything).text
        both = f"tl.reduce(({gap}, {gap} * {gap}), {axis}, bz_add_both)"
        name = scope.assign(both, self.rows).text
        return total, TritonTerm(f"{name}[0]", self.rows), TritonTerm(f"{name}[1]", self.rows)

    def joined(self, totals: str, rests: str, squares: str) -> tuple[TritonTerm, TritonTerm]:
        """The sum and the squares of a row, from what its parts held."""
        scope, rows, size = self.scope, self.rows, self.moments.size
        share, points = self._share(self._lanes), self._chosen(self._lengths, self._lanes)
        total = scope.assign(f"tl.sum({totals}.to(tl.float64), 0).to(tl.float32)", rows)
        mean = scope.assign(f"{total.text} * {1 / size!r}", rows)  # roughly, too
        apart = self._of_parts(f"{totals} * {share} - {mean.text}")
        left = f"tl.sum({apart} * {points} + {rests}, 0)"
        rounding = scope.assign(f"{left} * {1 / size!r}", rows)
        apart = self._of_parts(f"{apart} - {rounding.text}")
        gaps = f"{apart} * (2.0 * {rests} + {apart} * {points})"
        return total, scope.assign(f"tl.sum({squares} + {gaps}, 0)", rows)

    # --- private -----------------------------------------------------------------------------

    @property
    def _lengths(self) -> tuple[float, float]:
        """Points of a part, and of the last one, which may have fewer."""
        return float(self.spread.length), float(self.spread.last(self.moments.size))

    @property
    def _lanes(self) -> str:
        return f"tl.arange(0, {power_of_two(self.spread.parts)})"

    def _share(self, part: str) -> str:
        usual, last = self._lengths
        return self._chosen((1 / usual, 1 / last), part)

    def _chosen(self, numbers: tuple[float, float], part: str) -> str:
        """The first number, of the last part the second."""
        usual, last = numbers
        if usual == last:
            return repr(usual)
        text = f"tl.where({part} == {self.spread.parts - 1}, {last!r}, {usual!r})"
        return self.scope.assign(text, self.rows).text

    def _of_points(self, text: str) -> str:
        """A value of each point; zero in lanes beyond them."""
        mask = self.scope.mask(self.everything - self.rows)
        return f"tl.where({mask}, {text}, 0.0)" if mask else text

    def _of_parts(self, text: str) -> str:
        """A value of each part; zero in lanes beyond them."""
        parts = self.spread.parts
        if power_of_two(parts) != parts:
            text = f"tl.where({self._lanes} < {parts}, {text}, 0.0)"
        return self.scope.assign(text, self.rows).text


# --- private -----------------------------------------------------------------------------


def _moments(
    squares: Accumulate,
    totals: Mapping[Buffer, Accumulate],
    stored: Mapping[Buffer, Scalar],
    size: int,
) -> Moments | None:
    """What is summed up is the square of a difference from the mean of something else."""
    body = _plain(squares.body)
    if not (isinstance(body, Apply) and body.op == "mul" and body.operands[0] == body.operands[1]):
        return None
    gap = _plain(body.operands[0])
    if not (isinstance(gap, Apply) and gap.op == "sub"):
        return None
    value, mean = gap.operands
    if isinstance(mean, Load) and mean.buffer in stored:
        mean = stored[mean.buffer]
    if not (isinstance(mean, Apply) and mean.op == "truediv"):
        return None
    total, count = mean.operands
    if not (isinstance(total, Load) and isinstance(count, Literal) and count.value == size):
        return None
    summed = totals.get(total.buffer)
    if summed is None or not summed.dtype == squares.dtype == torch.float32:
        return None
    return Moments(summed, squares, value, size) if _plain(summed.body) == _plain(value) else None


def _plain(scalar: Scalar) -> Scalar:
    """The scalar without casts to what it is."""
    while isinstance(scalar, Cast) and scalar.dtype == scalar.operand.dtype:
        scalar = scalar.operand
    return scalar
