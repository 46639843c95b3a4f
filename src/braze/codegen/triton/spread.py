"""What the programs of a row tell each other: folds of parts, as folds of the row.

    r_part = pid % 8
    r_row = pid // 8
    ...
    v3 = tl.sum(v2, 0)                  of this program's part
    tl.store(p2 + (r_row * 2 + 0) * 8 + r_part, v3)
    bz_meet(p3 + r_row * 2 + 0, 8)      until all eight have written theirs
    w0 = tl.load(p2 + (r_row * 2 + 0) * 8 + tl.arange(0, 8))
    v4 = tl.sum(w0, 0)                  in the same order in each of them

Programs start in the order of their numbers. CUDA does not promise that; every device does it, and
the scans of NVIDIA's own library (CUB's decoupled look-back) rest on it. (Numbers taken from a
counter as programs begin need no such order: softmax took 161 us with them, 154 without.) Whoever
waits for a program that has not begun waits for one with a higher number then, of its own row. Rows
all of whose programs began have nothing to wait for but programs that run, and end. So at most one
row of a launch waits for programs that are not started, and `parts` - 1 programs of it at most, 63;
each program of another row that ends makes room for one. For nothing to end, programs that so wait
would have to fill the device: no single launch can where there are as many multiprocessors as parts
(`cooperative_reduction.py` sees to it); of 132 with room for one program each, the least that they
have, three launches of 64 parts at once could, or nine of 16, on streams of their own.

What is known of a row is written by the program of its first part: it may replace what it is made
of, as running statistics do, which the others have no use for.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from braze.codegen.triton.cost import power_of_two
from braze.codegen.triton.fold import TritonFold
from braze.codegen.triton.moments import Moments, MomentsFold
from braze.codegen.triton.online import Pair, PairFold
from braze.codegen.triton.scope import NUMBER, Dimensions, TritonScope
from braze.ir.kernels.schedule import Spread


@dataclass(slots=True)
class Meetings:
    """Of a kernel whose rows are shared. folded, met: how many folds and meetings came before."""

    spread: Spread
    scope: TritonScope
    folded: int = 0
    met: int = 0

    first = "r_part == 0"  # of the programs of a row, the one that writes what all know of it

    def place(self) -> list[str]:
        """Lines that say which part of which row is this program's, of its number."""
        parts = self.spread.parts
        return [f"r_part = pid % {parts}", f"pid = pid // {parts}", "r_row = pid"]

    def meet(
        self,
        folds: Sequence[TritonFold],
        planned: Sequence[Pair | Moments],
        axes: tuple[int, Dimensions, Dimensions],
    ) -> None:
        """The row's folds, known by their buffers, from those of this program's part."""
        if not folds and not planned:
            return
        pairs = [self._pair(pair, axes) for pair in planned]
        scope, local = self.scope, self.scope.local
        own = [local[fold.statement.target] for fold in folds]
        own += [term for pair in pairs for term in pair.held()]
        first = self.folded
        for number, term in enumerate(own):
            scope.add(f"tl.store({self._partial(first + number)} + r_part, {term.text})", NUMBER)
        self._wait()
        others = [fold.neutral for fold in folds]
        others += [other for pair in pairs for other in pair.neutral]
        names = [self._load(first + number, other) for number, other in enumerate(others)]
        self.folded += len(own)
        for fold, name in zip(folds, names):
            local[fold.statement.target] = fold.joined(name)
        rest = iter(names[len(folds) :])
        for pair in pairs:
            held = itertools.islice(rest, len(pair.neutral))
            local.update(zip(pair.targets, pair.joined(*held)))

    # --- private -----------------------------------------------------------------------------

    def _pair(
        self, pair: Pair | Moments, axes: tuple[int, Dimensions, Dimensions]
    ) -> PairFold | MomentsFold:
        if isinstance(pair, Moments):
            return MomentsFold(pair, self.scope, self.spread, *axes)
        return PairFold(pair, "", self.scope, *axes, self.spread.length)

    def _wait(self) -> None:
        meetings = self.spread.arrivals.shape[-1]
        place = f"{self.scope.pointers[self.spread.arrivals]} + r_row * {meetings} + {self.met}"
        self.scope.add(f"bz_meet({place}, {self.spread.parts})", NUMBER)
        self.met += 1

    def _partial(self, fold: int) -> str:
        folds = self.spread.partials.shape[-2]
        pointer = self.scope.pointers[self.spread.partials]
        return f"{pointer} + (r_row * {folds} + {fold}) * {self.spread.parts}"

    def _load(self, fold: int, other: str) -> str:
        """All parts' folds."""
        parts = self.spread.parts
        lanes = f"tl.arange(0, {power_of_two(parts)})"
        mask = "" if power_of_two(parts) == parts else f", {lanes} < {parts}, other={other}"
        name = f"w{fold}"
        text = f"tl.load({self._partial(fold)} + {lanes}{mask}, cache_modifier='.cg')"
        self.scope.add(f"{name} = {text}", NUMBER)
        return name
