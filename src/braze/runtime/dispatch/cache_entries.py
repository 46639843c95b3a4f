"""What is compiled of one place in one code object: entries, the next most likely one first.

A hit reads one tuple and takes no lock. Compiling takes the cache's re-entrant lock; the tuple is
replaced when everything else is done, so an interrupted compile leaves nothing behind. Another
lock, never held for long, orders the replacements.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.python.hidden_frames import hide_frames
from braze.compile_records import LeftToEager
from braze.errors import Interrupted, RecompileLimitExceeded
from braze.ir.captured.compile_request import (
    CompiledEntry,
    CompileFrame,
    CompileRequest,
    FrameValues,
    PartlyRun,
)
from braze.ir.captured.frame import NULL, Refused, Return
from braze.ir.captured.guard import GuardKind
from braze.ir.origin import Origin
from braze.kept_texts import FailedGuard
from braze.locks import call_in_children, make_lock
from braze.runtime.autograd.rng_state import RandomStates
from braze.runtime.dispatch.eager_fallback import Tally
from braze.runtime.guards.codegen import known_types
from braze.runtime.guards.compile import compile_entry_check
from braze.runtime.guards.evaluate import (
    GuardFailure,
    all_failures,
    explain_failure,
    first_failure,
)
from braze.runtime.resume.reconstruct import compile_replay, picked_results
from braze.shapes.policy import SizeHistory
from braze.trace import enabled, log_line

FrameKey: TypeAlias = tuple[Any, ...]

_FIXES: dict[GuardKind, str] = {
    GuardKind.TENSOR_MATCH: "Each size, dtype and layout is a program of its own: pad sizes to "
    "a few buckets, pass one dtype and layout, or raise options={'recompile_limit': ...}.",
    GuardKind.EQUALS_MATCH: "A Python number or string that changes at each call is a new program "
    "each time: pass a number as a 0-dim tensor, keep anything else out of the compiled function, "
    "or raise options={'recompile_limit': ...}.",
    GuardKind.ID_MATCH: "A new function, class or module object at each call is a new program: "
    "define it once, outside of the function that is called repeatedly.",
    GuardKind.STORAGE_OFFSET: "as_strided with an offset, and storage_offset(), tie the program to "
    "where a tensor begins in its storage: index or slice instead, or clone() the tensor before.",
    GuardKind.LENGTH: "The length of a container decides the program: pad it, or keep it fixed.",
}
_GENERAL_FIX = "Keep this value the same between calls, or raise recompile_limit."
_UNSTABLE_FIX = (
    "The program changes the value while it is compiled (another thread?), or this is a bug."
)
# Seconds that a call waits for another thread's compile: one that holds what that compile needs
# would wait for ever.
_LONGEST_WAIT = 60.0
# A frame that raises on bad arguments is tried again on good ones, but not without end.
_RAISES_PER_ENTRY = 8


@final
class CacheEntry:
    """A compiled way through a frame, ready to run.

    check: the graph's inputs where the guards hold, else None.
    returns: whether `replay` gives the return value; otherwise the open frames of a break.
    is_plain: it returns, and no random state has to be kept: the quick way.
    result: which of the graph's results `replay` gives, where it does nothing else.
    memory: the snapshots that `check` asks first.
    """

    __slots__ = (
        "__weakref__",
        "check",
        "compiled",
        "draws_on",
        "graph",
        "is_plain",
        "memory",
        "replay",
        "result",
        "returns",
    )

    def __init__(self, compiled: CompiledEntry) -> None:
        self.compiled = compiled
        made = compile_entry_check(compiled.guards, compiled.inputs)
        self.check, self.memory = made.check, made.memory
        self.replay = compile_replay(compiled.effects, compiled.exit, known_types(compiled.guards))
        self.result = picked_results(compiled.effects, compiled.exit)
        self.graph = compiled.graph
        self.returns = isinstance(compiled.exit, Return)
        self.draws_on = compiled.draws_on
        self.is_plain = self.returns and not self.draws_on

    def run_graph(self, inputs: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The graph's results; if it faults, random number generators are as before."""
        if not self.draws_on:
            return self.graph(inputs)
        states = RandomStates(self.draws_on)
        try:
            return self.graph(inputs)
        except PartlyRun:
            raise
        except Exception:  # an interrupt is not answered by running the frame eagerly
            states.restore()
            raise


@final
class _Compiling:
    """How many compiles are in progress in each thread, one within another."""

    def __init__(self) -> None:
        self._threads: Counter[int] = Counter()

    def __enter__(self) -> None:
        self._threads[threading.get_ident()] += 1

    def __exit__(self, *exception: object) -> None:
        here = threading.get_ident()
        self._threads[here] -= 1
        if self._threads[here] <= 0:
            del self._threads[here]

    def is_here(self) -> bool:
        """Whether this thread compiles."""
        return threading.get_ident() in self._threads

    def forget_others(self) -> None:
        """In a child, whose only thread is this one."""
        here = threading.get_ident()
        self._threads = Counter({here: self._threads[here]} if self.is_here() else {})


COMPILING = _Compiling()
call_in_children(COMPILING.forget_others)

Found: TypeAlias = tuple[CacheEntry, list[torch.Tensor]]


def _as_note(failure: GuardFailure) -> FailedGuard:
    """Why a guard failed, the user's line that made it, and what to do about it."""
    guard, reason = failure.guard, failure.message
    if guard is None:
        return FailedGuard(reason, fix=_GENERAL_FIX)
    place = f"{guard.origin.file}:{guard.origin.line}" if guard.origin.line else ""
    subject = "" if guard.source is None else str(guard.source)
    return FailedGuard(reason, place, subject, _FIXES.get(guard.kind, _GENERAL_FIX))


def continuation_key(code: types.CodeType, offset: int, values: FrameValues) -> FrameKey:
    """What tells two caches apart: place, bound locals, depth and NULLs of the stack."""
    nulls = tuple([index for index, slot in enumerate(values.stack) if slot is NULL])
    return (id(code), offset, frozenset(values.locals), len(values.stack), nulls)


@final
class FrameCache:
    """All entries for one (code, offset, stack form).

    entries: most recently used first; replaced as a whole, never changed.
    limit: entries at most; refusals count too, so that a frame is not tried forever.
    closed: why nothing more is compiled here; None while something may be.
    hidden: the entries while no call may find them, which a stance asks for; None while calls do.
    is_left_out: its operators run eagerly, so that nothing of it is logged.
    """

    __slots__ = (
        "__weakref__",
        "closed",
        "code",
        "entries",
        "fullgraph",
        "hidden",
        "history",
        "is_left_out",
        "limit",
        "lock",
        "offset",
        "order",
        "refusals",
        "tally",
    )

    def __init__(
        self,
        code: types.CodeType,
        offset: int,
        limit: int,
        fullgraph: bool = False,
        tally: Tally | None = None,
        is_left_out: bool = False,
    ) -> None:
        self.tally = tally or Tally(fullgraph)
        self.fullgraph, self.is_left_out = fullgraph, is_left_out
        self.code = code
        self.offset = offset
        self.limit = limit
        self.entries: tuple[CacheEntry, ...] = ()
        self.hidden: tuple[CacheEntry, ...] | None = None
        self.refusals: tuple[Refused, ...] = ()
        self.closed: LeftToEager | None = None
        self.history = SizeHistory()
        self.lock = make_lock()
        self.order = make_lock()

    def clear(self) -> None:
        """Forget everything compiled here."""
        with self.lock, self.order:
            self.entries, self.refusals, self.closed = (), (), None
            self.hidden = None if self.hidden is None else ()
            self.history = SizeHistory()

    def note_sizes(self, values: FrameValues) -> None:
        """Compare the sizes of the next compile with those of a call that runs eagerly, too."""
        for name, value in values.locals.items():
            if type(value) in (int, float):
                self.history.changed(f"L[{name!r}]", (value,))
            elif isinstance(value, torch.Tensor) and value.layout is torch.strided:
                self.history.changed(f"L[{name!r}]", (*value.shape, *value.stride()))

    def hide(self, is_hidden: bool) -> None:
        """Have calls find no entries, by whichever way they look, or find them again."""
        with self.order:
            if is_hidden and self.hidden is None:
                self.entries, self.hidden = (), self.entries
            elif not is_hidden and self.hidden is not None:
                self.entries, self.hidden = self.hidden, None

    def find(self, values: FrameValues) -> Found | None:
        """The entry whose guards hold, with the graph's inputs."""
        entries = self.entries
        for entry in entries:
            inputs = entry.check(values)
            if inputs is not None:
                if entry is not entries[0]:
                    self._promote(entry)
                return entry, inputs
        return None

    def find_or_compile(
        self,
        compile_frame: CompileFrame,
        values: FrameValues,
        function: types.FunctionType | None = None,
    ) -> Found | LeftToEager:
        """The entry for these values, compiled now if there is none, or why there is none."""
        found = self.find(values)
        if found is not None:
            return found
        if self.closed is not None and not self.fullgraph:
            return self.closed
        waited = self._begin()
        if waited is not None:
            return waited
        try:
            found = self.find(values)
            if found is not None:
                return found
            if self.closed is not None and not self.fullgraph:
                return self.closed
            failures = [first_failure(entry.memory.tree, values) for entry in self.entries]
            if self._is_full():
                self.closed = self._limit([failure for failure in failures if failure is not None])
                return self.closed
            notes = tuple([_as_note(failure) for failure in failures if failure is not None])
            if self.entries:
                self._log_failures(values)
                self.tally.recompiles.add()
                self.tally.last_recompile = str(notes[0]) if notes else ""
            return self._compile(
                compile_frame,
                CompileRequest(
                    self.code,
                    self.offset,
                    values,
                    function,
                    notes,
                    not self.entries and not self.refusals,
                    self.history,
                ),
            )
        finally:
            self.lock.release()

    def _log_failures(self, values: FrameValues) -> None:
        """Log all guards that fail, entry by entry, where that is asked for."""
        if self.is_left_out or not enabled("recompiles_verbose"):
            return
        place = f"{self.code.co_filename}:{self.code.co_firstlineno}"
        lines = [f"Recompiling function {self.code.co_qualname} in {place}"]
        for number, entry in enumerate(self.entries):
            lines.append(f"  guards of entry {number} that fail:")
            failures = all_failures(entry.memory.tree, values)
            lines += [f"  - {_as_note(failure)}" for failure in failures]
        log_line("recompiles_verbose", "\n".join(lines), place)

    def _begin(self) -> LeftToEager | None:
        """Take the lock. Why the call is left to eager where another thread compiles here, and this
        one cannot wait for it: it compiles something itself, for which that thread may be waiting,
        or has waited long."""
        if self.lock.acquire(blocking=False):
            return None
        bound = -1.0 if self.fullgraph else _LONGEST_WAIT
        longest = 0.0 if COMPILING.is_here() else bound
        if self.lock.acquire(timeout=longest):
            return None
        what = "another thread compiles it, and this one does not wait any longer"
        hint = "call it once before threads do"
        return self._left("compile-in-progress", what, hint, is_for_good=False)

    def _is_full(self) -> bool:
        raised = sum(refusal.kind == "raises" for refusal in self.refusals)
        once = sum(refusal.kind == "once" for refusal in self.refusals)
        tried = len(self.entries) + len(self.refusals) - raised - once
        # Under fullgraph each call is compiled, or raises.
        gives_up = raised >= _RAISES_PER_ENTRY * self.limit and not self.fullgraph
        return tried >= self.limit or gives_up

    def _compile(
        self, compile_frame: CompileFrame, request: CompileRequest, *, is_again: bool = False
    ) -> Found | LeftToEager:
        try:
            with COMPILING:
                answer = compile_frame(request)
        except Interrupted as interrupted:
            raise interrupted.exception from None
        entry = None if isinstance(answer, Refused) else CacheEntry(answer)
        inputs = entry.check(request.values) if entry is not None else None
        if entry is not None and inputs is None and not is_again:
            # Compiling has changed what the program reads: a module of PyTorch's was imported late.
            return self._compile(compile_frame, request, is_again=True)
        if isinstance(answer, Refused):
            why = self._refused(answer)
            if answer.kind != "now":
                self.refusals = (*self.refusals, answer)
            if answer.kind == "unsupported":
                self.closed = why
            return why
        assert entry is not None
        if inputs is None:
            failure = explain_failure(entry.memory.tree, request.values)
            what = (
                "a guard does not hold for the very values it was made from: "
                f"{failure or 'it held a moment later'}"
            )
            origin = Origin(self.code.co_filename, self.code.co_firstlineno)
            unstable = Refused("break", "unstable-guard", what, _UNSTABLE_FIX, origin)
            self.refusals = (*self.refusals, unstable)
            return self._refused(unstable)
        saving = answer.saving
        if saving is not None:
            saving.entry, saving.cache = weakref.ref(entry), weakref.ref(self)
            where = f"{self.code.co_filename}:{self.code.co_firstlineno}"
            saving.name = f"a compiled graph of {self.code.co_qualname} ({where})"
        with self.order:
            if self.hidden is None:
                self.entries = (entry, *self.entries)
            else:  # another thread changed the stance meanwhile
                self.hidden = (entry, *self.hidden)
        return entry, inputs

    def _promote(self, entry: CacheEntry) -> None:
        with self.order:
            if entry in self.entries:  # `clear` may have come between
                rest = [other for other in self.entries if other is not entry]
                self.entries = (entry, *rest)

    def _limit(self, failures: list[GuardFailure]) -> LeftToEager:
        """Why there are no more entries: which guard kept failing."""
        if not failures:
            return self._refusal_limit()
        named = [
            (("" if guard is None else str(guard.source), guard and guard.kind), reason)
            for _, guard, reason in failures
        ]
        worst = Counter(name for name, _ in named).most_common(1)[0][0]
        reason = next(reason for name, reason in named if name == worst)
        kind = worst[1]
        what = (
            f"compiled {len(self.entries)} times and none of them fits. The guard that kept "
            f"failing: {reason}"
        )
        fix = _GENERAL_FIX if kind is None else _FIXES.get(kind, _GENERAL_FIX)
        if self.fullgraph:
            origin = Origin(self.code.co_filename, self.code.co_firstlineno)
            raise RecompileLimitExceeded(what, hint=fix, origin=origin)
        return self._left("recompile-limit", what, f"From now on other inputs run eagerly. {fix}")

    def _refusal_limit(self) -> LeftToEager:
        last = self.refusals[-1]
        what = f"captured {len(self.refusals)} times in vain; the last time: {last.reason}"
        return self._left("refusal-limit", what, last.hint)

    def _left(self, code: str, what: str, hint: str, *, is_for_good: bool = True) -> LeftToEager:
        """Why this call, or all later ones, are left to eager."""
        where = f"{self.code.co_filename}:{self.code.co_firstlineno}"
        name, is_rest = self.code.co_qualname, self.offset > 0
        return LeftToEager(code, what, hint, where, name, is_rest, is_for_good=is_for_good)

    def _refused(self, refused: Refused) -> LeftToEager:
        """Why a call is left to eager whose frame was not captured."""
        name, is_rest = self.code.co_qualname, self.offset > 0
        code, may_raise = refused.code, refused.kind == "raises"
        return LeftToEager(
            "program-raises" if may_raise else code,
            refused.reason,
            "" if may_raise else refused.hint,
            str(refused.origin),
            name,
            is_rest,
            is_for_good=refused.kind not in ("once", "now"),
            may_raise=may_raise,
            returned="raised-in-capture-only" if may_raise else "",
            # One graph holds the frame, which is what fullgraph asks for: only no second one would.
            is_asked_for=refused.kind == "once",
        )


hide_frames(__name__)
