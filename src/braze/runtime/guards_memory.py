"""Which snapshots an entry keeps: a few, for the frames that it meets again and again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from braze.ir.entry import FrameValues
from braze.ir.guard import Guard
from braze.ir.source import Source
from braze.runtime.guards_native import LOADER, NativeLoader
from braze.runtime.guards_snapshot import Check, CompileCheck, take_snapshot

# A frame's objects that alternate (the layers of a model, one compiled function) need one each.
_SNAPSHOTS = 16
# Making one costs about as much as 30 full checks; so many calls pay for another.
_FREE_SNAPSHOTS = 16
_CALLS_PER_SNAPSHOT = 32
_ATTEMPTS = 2


@final
class SnapshotMemory:
    """Snapshots of one entry's guards, and when to make another.

    checks: what to ask first, in any order: each gives the graph's inputs or None for "unknown".
    generated: all guards as generated Python; it decides wherever no snapshot does.
    """

    __slots__ = (
        "_compile_check",
        "_failures",
        "_guards",
        "_inputs",
        "_loader",
        "_made",
        "_passed",
        "_snapshots",
        "checks",
        "generated",
    )

    def __init__(
        self,
        guards: Sequence[Guard],
        inputs: Sequence[Source],
        compile_check: CompileCheck,
        loader: NativeLoader = LOADER,
    ) -> None:
        self.generated: Any = compile_check(guards, inputs)
        self.checks: tuple[Check, ...] = ()
        self._guards = guards
        self._inputs = inputs
        self._compile_check = compile_check
        self._loader = loader
        self._snapshots: dict[tuple[Any, ...], Check] = {}
        self._passed = self._made = self._failures = 0

    def check_all(self, frame: FrameValues) -> list[Any] | None:
        """The generated check; a frame that passes may be remembered."""
        inputs: list[Any] | None = self.generated(frame)
        if inputs is not None:
            self._passed += 1
            # The first pass is the compiler's own.
            if self._passed > 1 and self._may_make():
                self.remember(frame)
        return inputs

    def _may_make(self) -> bool:
        allowed = _FREE_SNAPSHOTS + self._passed // _CALLS_PER_SNAPSHOT
        return self._made < allowed and self._failures < _ATTEMPTS

    def remember(self, frame: FrameValues) -> None:
        """Take a snapshot of a frame that passes, once the extension is loaded."""
        native = self._loader.ready()
        if native is None:
            return
        self._made += 1
        taken = take_snapshot(native, self._guards, self._inputs, frame, self._compile_check)
        if taken is None:
            self._failures += 1
            return
        snapshots = {key: check for key, check in self._snapshots.items() if key != taken.roots}
        kept = list(snapshots.items())[-(_SNAPSHOTS - 1) :]
        self._snapshots = {**dict(kept), taken.roots: taken.check}
        self.checks = tuple(reversed(self._snapshots.values()))
