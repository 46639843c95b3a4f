"""A maximum and the sum of exponentials that it shifts, in one walk over the row.

    for r: top = max of v                          for r: (top, s) = v folded into both
    for r: s = sum of exp(v - top)        ->

Lanes take a few neighbours at a time: the lane's sum is scaled when its maximum grows (Milakov and
Gimelshein, Online normalizer calculation for softmax, 2018). Where registers hold the row, two
folds are as quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from braze.codegen.triton.moments import Moments, moments_of
from braze.codegen.triton.scope import Dimensions, TritonScope, TritonTerm
from braze.frozen import frozen
from braze.ir.kernels.loops import Apply, Buffer, Cast, Load, Scalar
from braze.ir.kernels.scalars import loads, walk
from braze.ir.kernels.schedule import Accumulate, Phase, Store

_READ = 16  # bytes that a thread reads at once
_LARGEST_VALUE = 64  # nodes of an expression that is compared with another


@frozen
class Pair:
    """top: the maximum of `value`; total: the sum of exp(value - top)."""

    top: Accumulate
    total: Accumulate
    value: Scalar


@frozen
class OnlinePass:
    """One walk over the row: statements, pairs of folds, then what is done for the row."""

    body: tuple[Store | Accumulate, ...]
    pairs: tuple[Pair | Moments, ...]
    row: tuple[Store, ...]


def plan_passes(phases: Sequence[Phase], walked: bool, shared: bool = False) -> list[OnlinePass]:
    """A pass for each phase, or for two of them where rows are walked or shared and what they fold
    is a pair."""
    passes: list[OnlinePass] = []
    position = 0
    while position < len(phases):
        phase = phases[position]
        following = phases[position + 1] if position + 1 < len(phases) else None
        joined = None
        if following is not None and (walked or shared):
            joined = _joined(phase, following, shared)
        passes.append(joined or OnlinePass(phase.body, (), phase.row))
        position += 2 if joined else 1
    return passes


@dataclass(slots=True)
class PairFold:
    """The lanes of a pair: `name`_m their maxima, `name`_s their sums."""

    pair: Pair
    name: str
    scope: TritonScope
    axis: int
    rows: Dimensions
    everything: Dimensions
    block: int

    neutral = ("float('-inf')", "0.0")

    @property
    def targets(self) -> tuple[Buffer, Buffer]:
        """What is held."""
        return self.pair.top.target, self.pair.total.target

    def start(self) -> None:
        """The lanes before the loop."""
        shape, kind = self._lane_shape(), self._kind
        lines = self.scope.lines[0]
        lines.append(f"{self.name}_m = tl.full({shape}, float('-inf'), tl.{kind})")
        lines.append(f"{self.name}_s = tl.full({shape}, 0.0, tl.{kind})")

    def step(self) -> None:
        """A block folded into the lanes."""
        scope, name = self.scope, self.name
        mask = scope.mask(self.everything - self.rows)
        filled = scope.emit_filled(self.pair.value, "float('-inf')") if mask else None
        value = scope.broadcast(filled or scope.emit(self.pair.value), self.everything)
        if mask and filled is None:
            value = scope.assign(f"tl.where({mask}, {value}, float('-inf'))", self.everything).text
        lines = scope.lines[1]
        if self._is_grouped:
            lines.append(f"{name}_v = tl.reshape({value}, {self._group_shape()})")
            lines.append(f"{name}_n = tl.reduce({name}_v, 1, bz_maximum)")
            lines.append(f"{name}_n = bz_maximum({name}_m, {name}_n)")
            gap, total = f"{name}_v - bz_shift({name}_n)[:, None]", "tl.sum({}, 1)"
        else:
            lines.append(f"{name}_n = bz_maximum({name}_m, {value})")
            gap, total = f"{value} - bz_shift({name}_n)", "{}"
        lines.append(f"{name}_k = {self._exp(f'{name}_m - bz_shift({name}_n)')}")
        lines.append(f"{name}_s = {name}_s * {name}_k + {total.format(self._exp(gap))}")
        lines.append(f"{name}_m = {name}_n")

    def held(self) -> tuple[TritonTerm, TritonTerm]:
        """The maximum and the sum of a held part of a row; of nothing but -inf, -inf and 0."""
        scope = self.scope
        value = scope.broadcast(scope.emit(self.pair.value), self.everything)
        mask = scope.mask(self.everything - self.rows)
        if mask:
            value = scope.assign(f"tl.where({mask}, {value}, float('-inf'))", self.everything).text
        top = scope.assign(f"tl.reduce({value}, {self.axis}, bz_maximum)", self.rows)
        gap = f"{value} - bz_shift({top.text})"
        return top, scope.assign(f"tl.sum({self._exp(gap)}, {self.axis})", self.rows)

    def joined(self, tops: str, totals: str) -> tuple[TritonTerm, TritonTerm]:
        """Of a row, from those of its parts."""
        scope = self.scope
        top = scope.assign(f"tl.reduce({tops}, 0, bz_maximum)", self.rows)
        scaled = f"{totals} * {self._exp(f'{tops} - bz_shift({top.text})')}"
        return top, self._total(top, f"tl.sum({scaled}, 0)")

    def finish(self) -> tuple[TritonTerm, TritonTerm]:
        """The maximum and the sum, behind the loop. Nothing but -inf has no sum, as in eager."""
        scope, name = self.scope, self.name
        top = scope.assign(self._kept(f"tl.reduce({name}_m, {self.axis}, bz_maximum)"), self.rows)
        gap = f"{name}_m - bz_shift({top.text})"
        total = self._kept(f"tl.sum({name}_s * {self._exp(gap)}, {self.axis})")
        return top, self._total(top, total)

    # --- private -----------------------------------------------------------------------------

    def _total(self, top: TritonTerm, text: str) -> TritonTerm:
        whole = f"tl.where({top.text} == float('-inf'), float('nan'), {text})"
        total = self.scope.assign(whole, self.rows)
        self.scope.totals.add(total.text)
        return total

    @property
    def _kind(self) -> str:
        return "float32" if self.pair.top.dtype == torch.float32 else "float64"

    @property
    def _neighbours(self) -> int:
        """How many values a thread gets by one read of memory."""
        sizes = [load.buffer.dtype.itemsize for load in loads(self.pair.value)]
        return _READ // max(sizes, default=4)

    @property
    def _is_grouped(self) -> bool:
        return len(self.everything) == 1 and self.block >= 32 * self._neighbours > 32

    def _lane_shape(self) -> str:
        if self._is_grouped:
            return f"[RB // {self._neighbours}]"
        return self.scope.shape(self.everything)

    def _group_shape(self) -> str:
        return f"[RB // {self._neighbours}, {self._neighbours}]"

    def _exp(self, text: str) -> str:
        """Of gaps that are not positive: the short form's error grows with the gap, more slowly
        than the exponential falls, and so is lost in the sum."""
        short = self.pair.top.dtype == torch.float32
        return f"{'bz_exp_below' if short else 'libdevice.exp'}({text})"

    def _kept(self, text: str) -> str:
        return f"tl.expand_dims({text}, {self.axis})" if self.rows else text


# --- private ---------------------------------------------------------------------------------


def _joined(first: Phase, second: Phase, shared: bool) -> OnlinePass | None:
    """Both phases as one pass, where the second reads of the first only maxima to subtract, or
    means where rows are shared."""
    found: dict[Accumulate, Pair | Moments] = {}
    if shared:
        found.update(moments_of(first, second))
    found.update(_pairs(first, second))
    made = {s.target for s in (*first.body, *first.row)}
    others: list[Store | Accumulate] = []
    for statement in second.body:
        if isinstance(statement, Store):
            return None
        if statement not in found:
            if _reads(statement.body, made):
                return None
            others.append(statement)
    if not found:
        return None
    chosen = {p.total if isinstance(p, Moments) else p.top for p in found.values()}
    kept = [statement for statement in first.body if statement not in chosen]
    return OnlinePass((*kept, *others), tuple(found.values()), (*first.row, *second.row))


def _pairs(first: Phase, second: Phase) -> dict[Accumulate, Pair]:
    """The sums of a phase that maxima of the phase before shift; each maximum once."""
    tops = {s.target: s for s in first.body if isinstance(s, Accumulate) and s.kind == "max"}
    names = dict(tops)
    for store in first.row:
        if isinstance(store.value, Load) and store.value.buffer in tops:
            names[store.target] = tops[store.value.buffer]
    pairs: dict[Accumulate, Pair] = {}
    for statement in second.body:
        pair = _pair(statement, names)
        if pair is not None and all(pair.top is not other.top for other in pairs.values()):
            pairs[pair.total] = pair
    return pairs


def _pair(statement: Store | Accumulate, names: dict[Buffer, Accumulate]) -> Pair | None:
    if not isinstance(statement, Accumulate) or statement.kind != "sum":
        return None
    body = statement.body
    while isinstance(body, Cast) and body.dtype == statement.dtype:
        body = body.operand
    if not (isinstance(body, Apply) and body.op == "exp"):
        return None
    gap = body.operands[0]
    if not (isinstance(gap, Apply) and gap.op == "sub"):
        return None
    value, shift = gap.operands
    if not (isinstance(shift, Load) and shift.buffer in names):
        return None
    top = names[shift.buffer]
    if top.dtype not in (torch.float32, torch.float64) or top.dtype != statement.dtype:
        return None
    small = sum(1 for _ in walk(value)) <= _LARGEST_VALUE
    return Pair(top, statement, value) if small and value == top.body else None


def _reads(scalar: Scalar, buffers: set[Buffer]) -> bool:
    return any(load.buffer in buffers for load in loads(scalar))
