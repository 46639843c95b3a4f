"""A compiled graph whose calls are recorded and replayed.

    1st call            runs as compiled
    2nd call            is recorded, and replayed; where its time decides whether to record, it runs
                        as compiled once more, and the 3rd one is recorded
    later               replays a recording that reads the same parameters and whose results nobody
                        holds; else makes another one, up to a number, else runs as compiled

It never fails: what cannot be recorded runs as compiled, and the log says why.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch

from braze.compat.torch.grad_mode import is_autocast_on, set_grad_enabled, without_autocast
from braze.locks import make_lock
from braze.runtime.cuda_graphs.capture_analysis import RecordingFacts
from braze.runtime.cuda_graphs.cuda_graph import (
    CallRefused,
    NoRoom,
    NotRecordable,
    Recording,
    RecordingPool,
)
from braze.runtime.cuda_graphs.warmup_pool import CallsApart

# Recordings for the same sizes whose results may be held at once.
MOST_RECORDINGS = 4
# Different sizes that are remembered; the one that was used longest ago is forgotten.
MOST_SIZES = 16
# Recordings made for the same sizes before it is taken that pointers never settle.
_MOST_ATTEMPTS = 12

GraphCallable = Callable[[Sequence[Any]], list[torch.Tensor]]
# (inputs, numbers of those that are copied) -> the recording. Raises NotRecordable.
Record = Callable[[Sequence[Any], frozenset[int]], Recording]


@dataclass(slots=True)
class _CallsOfSizes:
    """Calls with the same sizes. pointers: of the fixed inputs in the last call that was not
    replayed, None before the first; moving: inputs that have been at different addresses."""

    pointers: tuple[int, ...] | None = None
    moving: frozenset[int] = frozenset()
    recordings: list[Recording] = field(default_factory=list)
    attempts: int = 0


@final
class RecordedGraph:
    """A `GraphCallable`.

    plain: the graph as compiled. takes_inputs: a call empties the list of its inputs. report: is
    told why calls are not replayed, each reason once. decide: says once why calls are not to be
    recorded, or "", from the seconds that a call took on the host; None: they are. moving: inputs
    that are known to be new each time. apart: where calls work before the first recording. instead:
    the graph in parts around a library call that cannot be recorded, once that was tried; None
    where there are none that would be.
    """

    def __init__(
        self,
        plain: GraphCallable,
        record: Record,
        facts: RecordingFacts,
        pool: RecordingPool,
        takes_inputs: bool,
        report: Callable[[str], None],
        decide: Callable[[float], str] | None = None,
        moving: frozenset[int] = frozenset(),
        apart: CallsApart | None = None,
        instead: Callable[[], GraphCallable | None] = lambda: None,
    ) -> None:
        self.text = getattr(plain, "text", "")
        self._plain, self._record, self._facts, self._pool = plain, record, facts, pool
        self._takes_inputs, self._report = takes_inputs, report
        self._lock = make_lock()
        self._sizes: OrderedDict[tuple[Any, ...], _CallsOfSizes] = OrderedDict()
        self._told: set[str] = set()
        self._refused = False
        self._decide, self._is_timed = decide, False
        self._moving = moving & {*facts.fixed_inputs}
        self._apart, self._instead = apart, instead

    def replays(self) -> bool:
        """Whether calls are replayed, or may come to be."""
        return not self._refused and not torch.cuda.is_current_stream_capturing()

    def __call__(self, inputs: Sequence[object]) -> list[torch.Tensor]:
        if self._refused:
            if self._apart is not None:
                self._end_apart()
            return self._plain(inputs)
        if torch.cuda.is_current_stream_capturing():
            return self._plain(inputs)
        if is_autocast_on():
            with without_autocast():
                return self(inputs)
        enabled = torch.is_grad_enabled()
        if enabled:
            set_grad_enabled(False)
        try:
            with self._lock:
                made = self._replayed(inputs)
        finally:
            if enabled:
                set_grad_enabled(True)
        if made is None:
            call = self._timed if self._is_timed else self._plain
            return call(inputs) if self._apart is None else self._apart.run(call, inputs)
        if self._takes_inputs:
            inputs.clear()  # type: ignore[attr-defined]
        return made

    def _timed(self, inputs: Sequence[object]) -> list[torch.Tensor]:
        """A call as compiled whose time on the host decides whether the next ones are recorded."""
        began = time.perf_counter()
        results = self._plain(inputs)
        seconds = time.perf_counter() - began
        decide, self._decide, self._is_timed = self._decide, None, False
        why_not = "" if decide is None else decide(seconds)
        if why_not:
            self._refused = True
            self._say(why_not)
        return results

    def _replayed(self, inputs: Sequence[object]) -> list[torch.Tensor] | None:
        """The results of a replay; None where the call is to run as compiled."""
        sized = self._sized(inputs)
        agreeing = False
        for recording in sized.recordings:
            if recording.agrees(inputs):
                agreeing = True
                if recording.is_free(inputs):
                    return self._replay(recording, inputs)
        made = self._new(sized, inputs, agreeing)
        return None if made is None else self._replay(made, inputs)

    def _replay(self, recording: Recording, inputs: Sequence[object]) -> list[torch.Tensor] | None:
        try:
            return recording.replay(inputs)
        except NotRecordable as reason:
            self._refused = True
            self._say(str(reason))
            return None

    def _new(self, sized: _CallsOfSizes, inputs: Sequence[Any], agreeing: bool) -> Recording | None:
        """Another recording, where that is of use. agreeing: there are some whose results are
        still held."""
        before, now = (
            sized.pointers,
            tuple([inputs[n].data_ptr() for n in self._facts.fixed_inputs]),
        )
        sized.pointers = now
        if before is None:
            return None  # what a first call sets up must not be recorded
        sized.moving |= {
            number
            for number, old, new in zip(self._facts.fixed_inputs, before, now)
            if old != new and new not in self._pool.addresses
        }
        home = self._pool.device.type
        sized.moving |= {n for n in self._facts.fixed_inputs if inputs[n].device.type != home}
        if self._decide is not None:
            self._is_timed = True
            return None
        if sized.attempts >= _MOST_ATTEMPTS:
            self._say("its inputs come at ever new addresses")
            return None
        sized.recordings = [r for r in sized.recordings if r.is_alive()]
        if len(sized.recordings) >= MOST_RECORDINGS:
            idle = [r for r in sized.recordings if r.is_free()]
            if agreeing or not idle:
                self._say(f"the results of {MOST_RECORDINGS} calls before are still in use")
                return None
            sized.recordings.remove(idle[0])
            idle[0].reset()
        sized.attempts += 1
        try:
            # What moved while the other graph was not recorded yet has its place now.
            settled = {n for n in sized.moving if inputs[n].data_ptr() in self._pool.addresses}
            made = self._record(inputs, sized.moving - settled)
        except (NotRecordable, torch.OutOfMemoryError) as reason:
            self._refused = not isinstance(reason, NoRoom)
            self._say(str(reason).split("\n")[0])
            self._end_apart()
            if isinstance(reason, CallRefused):
                self._plain = self._instead() or self._plain
            return None
        self._apart = None  # making it has released that
        sized.recordings.append(made)
        return made

    def _sized(self, inputs: Sequence[Any]) -> _CallsOfSizes:
        facts = self._facts
        key: tuple[Any, ...] = ()
        if facts.sized or len(inputs) > facts.count:
            shapes = [(inputs[n].shape, inputs[n].stride()) for n in facts.sized]
            key = (*shapes, *inputs[facts.count :])
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = _CallsOfSizes(moving=self._moving)
            if len(self._sizes) > MOST_SIZES:
                _, oldest = self._sizes.popitem(last=False)
                for recording in oldest.recordings:
                    recording.reset()
        self._sizes.move_to_end(key)
        return found

    def _end_apart(self) -> None:
        if self._apart is not None:
            self._apart.end()
            self._apart = None

    def _say(self, reason: str) -> None:
        if reason not in self._told:
            self._told.add(reason)
            self._report(f"calls are not replayed as a CUDA graph: {reason}")
