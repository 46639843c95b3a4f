"""How an entry's guards are checked: by snapshots of frames that it meets again and again, else by
generated Python; and until that pays, guard by guard.

Generating takes a fifth of a compile's time. Most entries never need it: the second call that
passes leaves a snapshot.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any, final

from braze.compat.torch.thread_state import without_collection
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard_tree import GuardTree, order_guards
from braze.ir.captured.source import Source
from braze.runtime.guards.evaluate import GuardFailure, walk
from braze.runtime.guards.native_extension import LOADER, NativeGuards, NativeLoader
from braze.runtime.guards.snapshot import Check, CompileCheck, Taken, take_snapshot
from braze.runtime.guards.snapshot_accessors import Place

# A frame's objects that alternate (the layers of a model, one compiled function) need one each. So
# many are made for nothing and kept, at least and at most, and of so many guards in all.
_FEWEST_SNAPSHOTS = 16
_MOST_SNAPSHOTS = 64
_FREE_GUARDS = 8192
# Making one costs about as much as 30 full checks; so many calls pay for another.
_CALLS_PER_SNAPSHOT = 32
_ATTEMPTS = 2
# How many that answered no call say that something comes with each call alone.
_UNUSED_SNAPSHOTS = 2
# So many in a row for the same frames, none of which answered a call, and the next one waits, each
# time longer. What leads elsewhere than the time before is left out of the next: a module writes to
# itself at each call. It is left out at once where it is little, since it may have moved but once.
_VAIN_SNAPSHOTS = 3
_FEW_MOVED = 8
_LONGEST_WAIT = 1 << 14
# Generating Python for a guard takes as long as asking it so many times.
_QUESTIONS_PER_GUARD = 8


@final
class SnapshotMemory:
    """Snapshots of one entry's guards, and when to make another.

    tree: the guards and the graph's inputs.
    checks: what to ask first, in any order: each gives the graph's inputs or None for "unknown".
    """

    __slots__ = (
        "_compile_check",
        "_failures",
        "_generated",
        "_guards",
        "_inputs",
        "_last",
        "_limit",
        "_loader",
        "_made",
        "_moving",
        "_passed",
        "_passing",
        "_questions",
        "_snapshots",
        "_vain",
        "_waits_until",
        "checks",
        "tree",
    )

    def __init__(
        self,
        tree: GuardTree,
        inputs: Sequence[Source],
        compile_check: CompileCheck,
        loader: NativeLoader = LOADER,
    ) -> None:
        self.checks: tuple[Check, ...] = ()
        self.tree = tree
        self._guards = guards = order_guards(tree.guards())
        self._inputs = inputs
        self._compile_check = compile_check
        self._loader = loader
        of_guards = _FREE_GUARDS // max(len(guards), 1)
        self._limit = min(max(of_guards, _FEWEST_SNAPSHOTS), _MOST_SNAPSHOTS)
        self._snapshots: dict[tuple[Any, ...], Taken] = {}
        self._last: tuple[Taken, ...] = ()
        self._passing: frozenset[Place] = frozenset()
        self._moving: frozenset[Source] = frozenset()
        self._generated: Any = None
        self._passed = self._made = self._failures = self._questions = 0
        self._vain = self._waits_until = 0

    @property
    def generated(self) -> Any:
        """All guards as generated Python, made when first asked for."""
        if self._generated is None:
            self._generated = self._compile_check(self._guards, self._inputs, self._guards)
        return self._generated

    def check_all(self, frame: FrameValues) -> list[object] | None:
        """Whether all guards hold, snapshots aside; a frame that passes may be remembered."""
        inputs: list[Any] | None
        if self._questions > _QUESTIONS_PER_GUARD * len(self._guards):
            inputs = self.generated(frame)
        else:
            found = walk(self.tree, frame)
            if isinstance(found, GuardFailure):
                self._questions += max(found.node, 1)
                return None
            self._questions += len(self._guards)
            inputs = found
        if inputs is not None:
            self._passed += 1
            # The first pass is the compiler's own.
            if self._passed > 1 and self._may_make():
                self.remember(frame)
        return inputs

    def _may_make(self) -> bool:
        allowed = self._limit + self._passed // _CALLS_PER_SNAPSHOT
        waits = self._passed < self._waits_until
        return self._made < allowed and self._failures < _ATTEMPTS and not waits

    def remember(self, frame: FrameValues) -> None:
        """Take a snapshot of a frame that passes, once the extension is loaded."""
        native = self._loader.ready()
        if native is None:
            return
        self._made += 1
        passing = self._passing | self._found_passing()
        if passing != self._passing:
            self._passing, self._snapshots, self._last = passing, {}, ()
        taken = self._take(native, frame)
        if taken is None:
            return
        before = self._snapshots.get(taken.roots)
        if before is None or _answered(before):
            self._vain = 0
        else:
            self._vain += 1
            taken = self._without_moving(taken, before, native, frame)
        if self._vain >= _VAIN_SNAPSHOTS:
            wait = _CALLS_PER_SNAPSHOT << (self._vain - _VAIN_SNAPSHOTS)
            self._waits_until = self._passed + min(wait, _LONGEST_WAIT)
        snapshots = {key: known for key, known in self._snapshots.items() if key != taken.roots}
        kept = list(snapshots.items())[-(self._limit - 1) :]
        self._snapshots = {**dict(kept), taken.roots: taken}
        self._last = (*self._last, taken)[-_UNUSED_SNAPSHOTS:]
        self.checks = tuple([t.snapshot.check for t in reversed(self._snapshots.values())])

    def _without_moving(
        self, taken: Taken, before: Taken, native: NativeGuards, frame: FrameValues
    ) -> Taken:
        """Another snapshot, where sources led elsewhere than the time before: without them. Others
        that served no call, of a model's other layers, would not serve one later, either."""
        moved = {s for s, where in taken.found.items() if before.found.get(s, where) != where}
        if not moved or (len(moved) > _FEW_MOVED and self._vain < _VAIN_SNAPSHOTS):
            return taken
        self._moving |= moved
        self._vain = 0
        self._snapshots = {key: t for key, t in self._snapshots.items() if _answered(t)}
        return self._take(native, frame) or taken

    def _take(self, native: NativeGuards, frame: FrameValues) -> Taken | None:
        taken = without_collection(
            functools.partial(
                take_snapshot,
                native,
                self._guards,
                self._inputs,
                frame,
                self._compile_check,
                self._passing,
                self._moving,
            )
        )
        self._failures += taken is None
        return taken

    def _found_passing(self) -> set[Place]:
        """Roots that no frame brings again, where the last snapshots answered no call: objects that
        are gone; closures that each call makes; and others of which there was another one in each
        of many: in as many as are kept of what is there still, as layers of a model are."""
        last = self._last
        if len(last) < _UNUSED_SNAPSHOTS or any(map(_answered, last)):
            return set()
        first, second = last
        found = {
            p for p in first.references if _is_gone(first, p) and _is_replaced(p, first, second)
        }
        for place, (code, address) in first.closures.items():
            again = second.closures.get(place, (None, address))
            if again[0] is code and again[1] != address:
                found.add(place)
        kept = [*self._snapshots.values()]
        if len(kept) >= _FEWEST_SNAPSHOTS and not any(map(_answered, kept)):
            rows = {row for taken in kept[-_FEWEST_SNAPSHOTS:] for row in taken.roots}
            counts = Counter([(place, key) for place, key, _ in rows])
            other = {place for place, count in counts.items() if count == _FEWEST_SNAPSHOTS}
            is_full = len(kept) == self._limit
            found |= {p for p in other if is_full or _is_gone(kept[-_FEWEST_SNAPSHOTS], p)}
        return found


def _is_gone(taken: Taken, place: Place) -> bool:
    """Whether a root of that snapshot is no more; nobody knows of what cannot be referred to."""
    reference = taken.references.get(place)
    return reference is None or reference() is None


def _is_replaced(place: Place, before: Taken, after: Taken) -> bool:
    """Whether the next snapshot has another root there, or one that is gone, too."""
    if place not in after.references:
        return False
    addresses = [{(p, key): at for p, key, at in t.roots}.get(place) for t in (before, after)]
    return addresses[0] != addresses[1] or _is_gone(after, place)


def _answered(taken: Taken) -> bool:
    """Whether it served any call but the one that it was made at."""
    return bool(taken.snapshot.proven > 1)
