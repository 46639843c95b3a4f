"""What `braze.profile_recompiles()` gathers: who is compiled again, how often, at what cost, why.

with braze.profile_recompiles() as profile:
    train()
print(profile)
"""

from __future__ import annotations

import atexit
import itertools
from collections import Counter
from collections.abc import Callable
from typing import final

from braze.compile_records import LISTENERS, CompileEvent, LeftToEager
from braze.frozen import frozen
from braze.kept_texts import FailedGuard
from braze.locks import make_lock
from braze.report.printed_report import PrintedReport
from braze.trace import JOURNAL, enabled, log_line

LOG = "recompile_profile"


@final
@frozen
class RecompileCause:
    """What changed, so that none of a function's entries served.

    subject: the value that a guard is of ("L['x']"). kind: what of it changed, in words.
    count: how often it made a compile; seconds: wall time of these. last: how it differed the last
    time. place: `file:line` of the program that reads it. fix: what to do about it.
    """

    subject: str
    kind: str
    count: int
    seconds: float
    last: str
    place: str
    fix: str


@final
@frozen
class RecompiledFunction:
    """A function, or the rest of one behind a graph break, that was compiled again.

    compiles: all of it in the time of the profile; seconds: wall time of the compiles that were not
    the first. causes: the most frequent first. limits: that calls run eagerly from now on, and why.
    """

    function: str
    origin: str
    compiles: int
    recompiles: int
    seconds: float
    causes: tuple[RecompileCause, ...]
    limits: tuple[str, ...] = ()


@final
class RecompileProfile(PrintedReport):
    """The compiles of the process in a `with` block, or between `start` and `stop`.

    compiles, seconds: of all of them, the first ones and those of backwards too.
    """

    SECTIONS = "braze.report.recompile_tables"

    def __init__(self) -> None:
        self.compiles, self.seconds = 0, 0.0
        self._lock = make_lock()
        self._end: Callable[[], None] | None = None
        self._compiles: Counter[tuple[str, str]] = Counter()
        self._again: dict[tuple[str, str], list[tuple[FailedGuard, float]]] = {}
        self._known: tuple[LeftToEager, ...] = ()
        self._limits: tuple[LeftToEager, ...] | None = None

    def __enter__(self) -> RecompileProfile:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def start(self) -> None:
        """Begin; a second one does nothing."""
        if self._end is None:
            self._known = _limits()
            self._end = LISTENERS.add(self._take)

    def stop(self) -> None:
        """End; what was gathered stays."""
        if self._end is not None:
            self._end()
            self._end, self._limits = None, self._new_limits()

    @property
    def recompiles(self) -> int:
        """Compiles of places that had an entry."""
        return sum(map(len, self._again.values()))

    @property
    def functions(self) -> tuple[RecompiledFunction, ...]:
        """Those that were compiled again, the one that took longest first."""
        with self._lock:
            again = {key: tuple(found) for key, found in self._again.items()}
            counts = Counter(self._compiles)
        limits = self._new_limits() if self._limits is None else self._limits
        keys = dict.fromkeys([*again, *((why.function, why.origin) for why in limits)])
        rows = [_row(key, counts[key], again.get(key, ()), limits) for key in keys]
        return tuple(sorted(rows, key=lambda row: -row.seconds))

    def report(self) -> str:
        """The profile as text."""
        return str(self)

    # --- private -----------------------------------------------------------------------------

    def _take(self, event: CompileEvent) -> None:
        record = event.record
        if record is None:
            return
        key = (record.function, record.origin)
        with self._lock:
            self.compiles += 1
            self.seconds += record.seconds
            self._compiles[key] += 1
            if record.failures:  # the entry that served last is the one that the call should fit
                self._again.setdefault(key, []).append((record.failures[0], record.seconds))

    def _new_limits(self) -> tuple[LeftToEager, ...]:
        return tuple(why for why in _limits() if why not in self._known)


@final
class WholeRun:
    """The profile of a whole process, which the log `recompile_profile` shows at its end."""

    def __init__(self) -> None:
        self._profile: RecompileProfile | None = None

    def begin_where_shown(self) -> None:
        """Begin where that log is asked for; once in a process."""
        if self._profile is None and enabled(LOG):
            self._profile = RecompileProfile()
            self._profile.start()
            atexit.register(self._say)

    def _say(self) -> None:
        log_line(LOG, str(self._profile))


WHOLE_RUN = WholeRun()


# --- private ---------------------------------------------------------------------------------


def _limits() -> tuple[LeftToEager, ...]:
    return tuple(why for why in JOURNAL.left_to_eager() if why.code == "recompile-limit")


def _row(
    key: tuple[str, str],
    compiles: int,
    again: tuple[tuple[FailedGuard, float], ...],
    limits: tuple[LeftToEager, ...],
) -> RecompiledFunction:
    function, origin = key
    causes = []
    ordered = sorted(again, key=_kind)
    for (subject, kind), group in itertools.groupby(ordered, key=_kind):
        own = [*group]
        last = own[-1][0]
        spent = sum(seconds for _, seconds in own)
        causes.append(
            RecompileCause(subject, kind, len(own), spent, last.reason, last.place, last.fix)
        )
    causes.sort(key=lambda cause: (-cause.count, -cause.seconds))
    said = tuple(f"{why.reason} {why.hint}" for why in limits if (why.function, why.origin) == key)
    spent = sum(seconds for _, seconds in again)
    return RecompiledFunction(function, origin, compiles, len(again), spent, tuple(causes), said)


def _kind(each: tuple[FailedGuard, float]) -> tuple[str, str]:
    """The value, and what of it changed: the reason without the two values that differ."""
    return each[0].subject, each[0].reason.partition(". expected")[0]
