"""How calls in a `torch.utils.checkpoint` ran: its recomputation runs each as its forward did.

    forward         f by graph 1, which saves 2 tensors     recomputation   f by graph 1
                    g left to eager, which saves 5                          g left to eager

The checkpoint takes the n-th tensor that its recomputation saves for the n-th of its forward, and
may stop at the last. A graph saves other tensors than eager does, and than another graph of the
same code: where the two calls ran in different ways, wrong tensors would be taken. So the frame of
a checkpoint keeps, in the order of the calls, what ran them and how many tensors were saved before
and after. What ran a call that saved nothing may change.
"""

from __future__ import annotations

import types
from typing import Any, TypeAlias, final

from braze.compat.torch.saved_tensor_hooks import checkpoint_in_force, saved_count
from braze.errors import RecomputedOtherwise
from braze.frozen import frozen
from braze.ir.captured.compile_request import SavingGraph


@final
@frozen
class EagerRun:
    """The program's own code, from an offset on."""

    code: types.CodeType
    offset: int

    def __str__(self) -> str:
        part = "the rest of " if self.offset else ""
        return f"{part}{self.code.co_qualname}, left to eager"


Way: TypeAlias = SavingGraph | EagerRun


@final
class _ForwardCall:
    """A call of the forward. start, end: tensors saved before and after it; end is None while it
    runs, and where it raised. kept: what the recomputation finds the graph by, alive until then."""

    __slots__ = ("end", "kept", "start", "way")

    def __init__(self, way: Way, start: int) -> None:
        self.way = way
        self.kept = (way.entry(), way.cache()) if type(way) is SavingGraph else ()
        self.start = start
        self.end: int | None = None


@final
class _CallsOfForward:
    """The calls of a checkpoint's forward, and how many of them each recomputation has made."""

    __slots__ = ("calls", "made")

    def __init__(self) -> None:
        self.calls: list[_ForwardCall] = []
        self.made: dict[Any, int] = {}

    def place(self, recomputation: object, start: int) -> int:
        """The number of the forward's call at which a recomputation is that has saved `start`
        tensors: calls that saved nothing are passed over where more was saved since."""
        place = self.made.get(recomputation, 0)
        calls = self.calls
        while place < len(calls) and calls[place].end == calls[place].start < start:
            place += 1
        return place


_ATTRIBUTE = "_braze_calls"


@final
class CheckpointedCall:
    """A call that a checkpoint's function makes, in its forward or in a recomputation.

    with_way: what is about to run it. Raises RecomputedOtherwise where a graph is, and is not what
    ran the forward's call. Eager may run it if it saves nothing.
    """

    __slots__ = ("_call", "_frame", "_recomputation", "_start", "_way")

    def __init__(self, frame: Any, recomputation: Any, way: Way) -> None:
        self._frame, self._recomputation, self._way = frame, recomputation, way
        self._start = saved_count(frame, recomputation)
        calls = _calls_of(frame)
        self._call: _ForwardCall | None = None
        if recomputation is None:
            self._call = _ForwardCall(way, self._start)
            calls.calls.append(self._call)
            return
        place = calls.place(recomputation, self._start)
        for number in range(place, len(calls.calls)):
            known = calls.calls[number]
            if known.way == way and known.start == self._start:
                calls.made[recomputation] = number + 1
                self._call = known
                return
            if known.end != known.start:
                break  # a call that saved something is not passed over
        if type(way) is SavingGraph:
            raise self._otherwise()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        call = self._call
        if self._recomputation is None:
            assert call is not None
            if kind is None:
                call.end = saved_count(self._frame, None)
            elif type(self._way) is SavingGraph:  # it faulted, and something else runs the call
                _calls_of(self._frame).calls.remove(call)
        elif call is None and saved_count(self._frame, self._recomputation) != self._start:
            raise self._otherwise() from None

    def _otherwise(self) -> RecomputedOtherwise:
        calls = _calls_of(self._frame)
        place = calls.place(self._recomputation, self._start)
        forward = calls.calls[place] if place < len(calls.calls) else None
        now = _described(self._way)
        if forward is not None and now == _described(forward.way):
            now = f"{now}, but not the same one, or not at the same place"
        return recomputed_otherwise(None if forward is None else forward.way, now)


@final
class _OutsideOfCheckpoints:
    """A call that no checkpoint's function makes."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exception: object) -> None:
        return None


_OUTSIDE = _OutsideOfCheckpoints()


def in_checkpoint(way: Way) -> CheckpointedCall | _OutsideOfCheckpoints:
    """The context in which a call is run in this way."""
    found = checkpoint_in_force()
    return _OUTSIDE if found is None else CheckpointedCall(*found, way)


def way_of_forward() -> Way | None:
    """What ran the call of the forward that is next in the recomputation at hand; None where there
    is no such call, or no recomputation."""
    found = checkpoint_in_force()
    if found is None or found[1] is None:
        return None
    frame, recomputation = found
    calls, start = _calls_of(frame), saved_count(frame, recomputation)
    place = calls.place(recomputation, start)
    if place == len(calls.calls) or calls.calls[place].start != start:
        return None
    return calls.calls[place].way


def recomputed_otherwise(forward: Way | None, now: str) -> RecomputedOtherwise:
    """The error of a recomputation that would run a call in another way than its forward. now: what
    would run it, in words."""
    ran = "no compiled code there" if forward is None else _described(forward)
    return RecomputedOtherwise(
        "torch.utils.checkpoint would compute its function again in another way than in the "
        f"forward, which gives wrong gradients. The forward ran: {ran}. The recomputation would "
        f"run: {now}."
    )


def _described(way: Way) -> str:
    return way.name if type(way) is SavingGraph else str(way)


def _calls_of(frame: object) -> _CallsOfForward:
    found = getattr(frame, _ATTRIBUTE, None)
    if found is None:
        found = _CallsOfForward()
        setattr(frame, _ATTRIBUTE, found)
    return found
