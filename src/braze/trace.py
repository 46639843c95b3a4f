"""What happened while compiling: times per stage, counters, breaks, fallbacks; and log lines.
And why calls of what is compiled were left to eager.

A `Recorder` is made for each frame that is compiled and handed down, never looked up. When the
compile ends its `CompileRecord` goes to a `Journal`: the process-wide one, or one of `explain`.

    recorder = Recorder(journal, "forward", "model.py:12")
    with recorder.stage("lower"):
        program = lower(graph, options)
    recorder.count("kernels", 3)
    recorder.emit("output_code", lambda: sources.text)
    recorder.finish()
"""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, final

from braze.compile_records import LISTENERS, BreakNote, CompileEvent, CompileRecord, LeftToEager
from braze.frozen import frozen
from braze.kept_texts import (
    KEPT_ARTEFACTS,
    FailedGuard,
    KeptTexts,
    KernelNote,
    MemoryNote,
    PassNote,
    SizeNote,
)
from braze.kernel_times import GraphTimes, KernelTimes
from braze.locks import make_lock

# Log artefacts: each is the logger `braze.<name>`, switched on by BRAZE_LOGS or `set_logs`.
# A stage without a recorder at hand logs to that logger itself.
ARTEFACTS: Mapping[str, str] = MappingProxyType(
    {
        "graph_breaks": "where and why a graph broke, and what to do about it",
        "eager_calls": "calls, or rests of calls, that the program's own code ran, and why",
        "recompiles": "which guard failed when a function is compiled again",
        "recompiles_verbose": "all guards that fail then, not the first of each entry",
        "recompile_profile": "at the end: who was compiled again, how often, at what cost, and why",
        "guards": "what each compiled entry assumes",
        "bytecode": "the instructions of a frame, and where it begins",
        "graph": "the functional ATen graph as captured",
        "graph_code": "the torch-level graph as Python code, with types and user lines",
        "graph_sizes": "the size of each tensor of that graph",
        "trace_source": "each source line as it is captured",
        "trace_call": "each call that capture goes into",
        "trace_bytecode": "each instruction as it is captured, and the stack before it",
        "aot_joint_graphs": "the ATen graph with its backward, where gradients are needed",
        "aot_graphs": "the ATen graph after the graph passes, forward and backward",
        "passes": "each pass over a graph or a schedule: its time, and whether it changed anything",
        "loops": "the loop program",
        "schedule": "kernels, buffers and their reuse",
        "fusion": "what was fused, and why not",
        "output_code": "the generated source",
        "kernel_code": "the source of each kernel, and the command and time of each build",
        "dynamic": "which sizes became symbols, and which lines guard or specialise them",
        "cache": "hits, misses and what was not stored",
        "perf_hints": "what costs time: fallbacks, copies, operators without own kernels",
        "compile_times": "seconds per stage for each compile",
    }
)

# Found once: to look for a logger takes a lock of the process at each compile.
_LOGGERS = MappingProxyType({name: logging.getLogger(f"braze.{name}") for name in ARTEFACTS})

_GRAPHS = itertools.count()

# Why a call is left to eager, where that is no graph break: one of the catalogue keeps its code.
EAGER_CODES: Mapping[str, str] = MappingProxyType(
    {
        "program-raises": "the program raises, which eager does with the exact exception",
        "raised-in-capture-only": "the program raises while it is captured, and not in eager: it "
        "asks whether a compiler is at work, or this is a fault of Braze",
        "graph-fault": "a compiled graph failed before anything was written, and eager did not",
        "check-failed": "a graph found that the program raises, which it handles itself",
        "unstable-guard": "a guard does not hold for the very values that it was made from",
        "internal-error": "a fault of Braze while it compiled",
        "recompile-limit": "no entry fits, and there are as many as recompile_limit allows",
        "refusal-limit": "the frame was captured in vain as often as recompile_limit allows",
        "single-use": "a large graph that would serve no other call; the next one is compiled",
        "compile-in-progress": "another thread compiles the same place, and cannot be waited for",
        "idle-breaks": "hundreds of graph breaks came in a row with nothing computed between",
        "tracer": "a tracer of PyTorch's, which is active now, is to see the program's operators",
        "saved-tensors-hooks": "hooks on saved tensors are set around the call, and a graph cannot "
        "show them what the program's operators would",
        "recomputed": "torch.utils.checkpoint computes again what its forward left to eager",
        "run-only": "braze.run compiles nothing for new kinds of input",
        "stance": "braze.set_stance has calls run eagerly",
        "wrong-arguments": "the arguments do not fit the function's parameters",
        "signal": "a handler of a signal raised while the call was compiled or its graph ran: what "
        "the program does with that",
        "handled-exception": "an exception came out of a call behind a break: what handles it",
    }
)

# Those of them that no break of the program's explains.
FAULTS = frozenset("raised-in-capture-only graph-fault unstable-guard internal-error".split())

# Records that the process-wide journal keeps.
JOURNAL_LENGTH = 1000


@final
class Journal:
    """Finished compile records, oldest first; safe to use from several threads.

    detailed: whether records carry what is dear to print (guards).
    new_texts: makes what keeps the texts of a compile, where there is a trace.
    times: of kernels, where there is a trace.
    """

    __slots__ = ("_fallbacks", "_left", "_lock", "_records", "detailed", "new_texts", "times")

    def __init__(self, *, detailed: bool = False, length: int | None = None) -> None:
        self.detailed = detailed
        self.new_texts: Callable[[], KeptTexts] | None = None
        self.times: GraphTimes | None = None
        self._lock = make_lock()
        self._records: deque[CompileRecord] = deque(maxlen=length)
        self._fallbacks: deque[str] = deque(maxlen=length)
        self._left: dict[LeftToEager, None] = {}

    @property
    def is_explained(self) -> bool:
        """Whether records carry all of a compile, for `explain`: a trace keeps texts instead."""
        return self.detailed and self.new_texts is None

    def add(self, record: CompileRecord) -> None:
        """Append a finished record."""
        with self._lock:
            self._records.append(record)

    def note_fallback(self, reason: str) -> None:
        """Note that a *call* ran otherwise than compiled; equal reasons are kept once."""
        with self._lock:
            if reason not in self._fallbacks:
                self._fallbacks.append(reason)

    def note_left(self, why: LeftToEager) -> None:
        """Note why a call was left to eager; equal reasons are kept once."""
        with self._lock:
            if len(self._left) < JOURNAL_LENGTH:
                self._left[why] = None
            if why.code in FAULTS and why.reason not in self._fallbacks:
                self._fallbacks.append(why.reason)

    def left_to_eager(self) -> tuple[LeftToEager, ...]:
        """Why calls were left to eager so far."""
        with self._lock:
            return tuple(self._left)

    def records(self) -> tuple[CompileRecord, ...]:
        """The records so far."""
        with self._lock:
            return tuple(self._records)

    def fallbacks(self) -> tuple[str, ...]:
        """Fallbacks of calls so far; those of compiles are in their records."""
        with self._lock:
            return tuple(self._fallbacks)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._records.clear()
            self._fallbacks.clear()
            self._left.clear()


JOURNAL = Journal(length=JOURNAL_LENGTH)


@final
class CompileRecorder:
    """Collects what happens in one compile. Used by one thread at a time, except `count`.

    is_silent: it writes no logs, and nobody is told of it: of a frame that is left out.
    """

    def __init__(
        self, journal: Journal, function: str, origin: object, *, is_silent: bool = False
    ) -> None:
        self.journal, self.is_silent = journal, is_silent
        self.function = function
        self.origin = str(origin)
        self._texts = None if is_silent or not journal.new_texts else journal.new_texts()
        self.failed_stage: str | None = None
        self._began, self._clock = time.perf_counter(), time.time()
        self._spans: list[tuple[str, float, float]] = []
        if not is_silent:
            LISTENERS.tell(CompileEvent("begin", function, self.origin))
        self._stages: dict[str, float] = {}
        self._counters: Counter[str] = Counter()
        self._lock = make_lock()
        self._ops: tuple[str, ...] = ()
        self._extern_ops: tuple[str, ...] = ()
        self._guards: tuple[str, ...] = ()
        self._break: BreakNote | None = None
        self._fallbacks: list[str] = []
        self._raised = self._once = ""
        self._paddings: list[str] = []
        self._passes: list[PassNote] = []
        self._graphs: list[str] = []
        self._kernels: list[KernelNote] = []
        self._failures: tuple[FailedGuard, ...] = ()
        self._sizes: list[SizeNote] = []
        self._program: Any = None
        self._unfused: list[str] = []
        self._before: dict[str, int] = {}  # bytes that eager holds at most, by the graph's title
        self._memory: list[MemoryNote] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage; the time of one entered twice adds up. `failed_stage` is the innermost
        one that an exception left."""
        began = time.perf_counter()
        self._stages.setdefault(name, 0.0)
        try:
            yield
        except BaseException:
            self.failed_stage = self.failed_stage or name
            raise
        finally:
            ended = time.perf_counter()
            self._stages[name] += ended - began
            self._spans.append((name, began - self._began, ended - self._began))

    def note_pass(
        self, stage: str, name: str, seconds: float, changed: bool, program: object, context: object
    ) -> None:
        """A pass ran; its line goes to the artefact "passes"."""
        note = PassNote(stage, sys.intern(name), seconds, changed)
        self._passes.append(note)
        ended = time.perf_counter() - self._began
        self._spans.append((note.name, ended - seconds, ended))
        self.keep_program(stage, note.name, program, changed)
        self.emit("passes", lambda: str(note))

    def keep_program(self, stage: str, name: str, program: object, changed: bool = True) -> None:
        """Have a trace show a program behind a pass; name "": as it comes into the stage."""
        if self._texts is not None:
            self._texts.keep_program(stage, name, program, changed)

    def keep(self, kind: str, text: str | Callable[[], str]) -> None:
        """Have a trace show a text."""
        if self._texts is not None:
            self._texts.keep(kind, text)

    def new_graph(self, peak: Callable[[], int]) -> str:
        """The title of a graph that is compiled: its number is that of no other in the process.
        peak: the bytes that eager holds at most for it; asked for only where a report shows it."""
        title = f"braze {self.function} ({self.origin}), graph {next(_GRAPHS)}"
        self._graphs.append(title)
        if self.journal.is_explained:
            self._before[title] = peak()
        return title

    def times_of(self, title: str) -> KernelTimes | None:
        """What calls of a graph add their kernels' times to, where there is a trace."""
        return self.journal.times and self.journal.times.of(title)

    def count(self, name: str, amount: int = 1) -> None:
        """Add to a counter ("kernels", "cache_hits")."""
        with self._lock:
            self._counters[name] += amount

    def note_ops(self, ops: Iterable[str]) -> None:
        """The operators of the captured graph."""
        self._ops = tuple(map(sys.intern, ops))  # thousands, kept for good, of few names

    def note_extern_ops(self, ops: Iterable[str]) -> None:
        """The operators that run by their ATen kernels."""
        self._extern_ops = tuple(map(sys.intern, ops))

    def note_guards(self, guards: Iterable[object]) -> None:
        """The guards of the entry; printed only where a report will show them."""
        if self.journal.is_explained:
            self._guards = tuple(map(str, guards))

    def note_kernels(self, kernels: Callable[[], Iterable[KernelNote]]) -> None:
        """The kernels of a graph; asked for only where a report will show them."""
        if self.journal.detailed:
            self._kernels += kernels()

    def note_program(self, program: object) -> None:
        """The captured graph as a `torch.fx.GraphModule`; None where there can be none."""
        self._program = program

    def note_size(self, make: Callable[[], SizeNote]) -> None:
        """What became of a size; made where a report or a log shows it."""
        if self.journal.is_explained:
            self._sizes.append(make())
        self.emit("dynamic", lambda: str(make()))

    def note_fusion(self, refused: Callable[[], Iterable[str]]) -> None:
        """What was not computed in one kernel, and why."""
        if self.journal.is_explained:
            self._unfused += refused()

    def note_memory(self, title: str, peak: Callable[[], int], *, is_whole: bool) -> None:
        """The bytes that a graph's kernels hold at most, as planned."""
        if title in self._before:
            note = MemoryNote(title, self._before[title], peak(), is_whole)
            self._memory.append(note)

    def note_failures(self, failures: tuple[FailedGuard, ...], text: Callable[[], str]) -> None:
        """Why the place is compiled again."""
        self._failures = failures
        self.emit("recompiles", text)

    def note_break(self, note: BreakNote) -> None:
        """Why the frame ends in a graph break, or was refused."""
        self._break = note
        self.emit("graph_breaks", lambda: _break_text(note), origin=note.origin)

    def note_raise(self, reason: str, origin: object) -> None:
        """The program raised: the frame runs eagerly, for the exact exception."""
        self._raised = f"{origin}: {reason}"
        self.emit("graph_breaks", reason, origin=origin)

    def note_once(self, reason: str, origin: object) -> None:
        """The graph would serve this call alone: it runs eagerly, and the next one is compiled."""
        self._once = reason
        self.count("left_once")
        self.emit("recompiles", reason, origin=origin)

    def note_fallback(self, reason: str) -> None:
        """Something in this compile runs otherwise than asked."""
        self._fallbacks.append(reason)
        self.emit("perf_hints", reason)

    def note_eager_graph(self, reason: str) -> None:
        """A whole graph runs by eager kernels, so that no operator is in a kernel of Braze's."""
        self._extern_ops = tuple(dict.fromkeys((*self._extern_ops, *self._ops)))
        self.note_fallback(reason)

    def of_entry(self) -> dict[str, Any]:
        """What a compiled entry keeps of this: `operators` of its graph, and `fallbacks` so far."""
        fallbacks = tuple(dict.fromkeys(self._fallbacks))
        return {"operators": len(self._ops), "fallbacks": fallbacks}

    def note_fallback_of_calls(self, reason: str) -> None:
        """The same of calls of what was compiled, also after the compile."""
        self.journal.note_fallback(reason)
        self.emit("perf_hints", reason)

    def note_paddings(self, padded: Iterable[str], refused: Iterable[str]) -> None:
        """Sizes that recordings are padded for, and why others are not."""
        said = {
            "padded_sizes": [*padded],
            "refused_paddings": [f"not padded: {r}" for r in refused],
        }
        for counter, texts in said.items():
            for text in texts:
                self.count(counter)
                self._paddings.append(text)
                self.emit("perf_hints", f"recordings of calls: {text}")

    def emit(self, artefact: str, text: str | Callable[[], str], *, origin: object = None) -> None:
        """Write a log line of an artefact, at the user's place. A callable is called only where
        the artefact is switched on, or a trace keeps its texts."""
        if self._texts is not None and artefact in KEPT_ARTEFACTS:
            self._texts.keep(artefact, text)
        if enabled(artefact) and not self.is_silent:
            message = text if isinstance(text, str) else text()
            place = self.origin if origin is None else str(origin)
            extra = {"origin": place, "artefact": artefact}
            _LOGGERS[artefact].info("%s", message, extra=extra)

    def finishing(self, outcome: str) -> Finishing:
        """Close the record when the block ends, as failed where it raises."""
        return Finishing(self, outcome)

    def finish(self, outcome: str = "graph") -> CompileRecord:
        """Close the record and hand it to the journal."""
        record = CompileRecord(
            function=self.function,
            origin=self.origin,
            outcome=outcome,
            seconds=time.perf_counter() - self._began,
            stages=tuple(self._stages.items()),
            counters=MappingProxyType(dict(self._counters)),
            ops=self._ops, extern_ops=self._extern_ops, guards=self._guards,
            graph_break=self._break, fallbacks=tuple(dict.fromkeys(self._fallbacks)),
            raised=self._raised, once=self._once, paddings=tuple(self._paddings),
            passes=tuple(self._passes), graphs=tuple(self._graphs), kernels=tuple(self._kernels),
            failures=self._failures, sizes=tuple(self._sizes), program=self._program,
            unfused=tuple(self._unfused), memory=tuple(self._memory),
            began=self._clock, spans=tuple(self._spans),
        )  # fmt: skip
        if self.is_silent:
            return record
        self.journal.add(record)
        if self._texts is not None:  # for the trace alone: the journal keeps records for long
            record = replace(record, texts=tuple(self._texts.texts))
        LISTENERS.tell(CompileEvent("end", self.function, self.origin, record))
        times = ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in record.stages)
        self.emit("compile_times", f"{self.function}: {record.seconds:.3f} s ({times})")
        return record


@final
@frozen
class Finishing:
    """What `Recorder.finishing` returns.

    No generator: one that an interrupt leaves suspended would write its record whenever it is
    collected, into somebody else's report.
    """

    recorder: CompileRecorder
    outcome: str

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self.recorder.finish(self.outcome if kind is None else "failed")


def _break_text(note: BreakNote) -> str:
    stack = f"\nUser code:\n{note.stack_text}" if note.stack else ""
    hint = f"\n  {note.hint}" if note.hint else ""
    return f"{note.reason} [{note.code}]{hint}{stack}"


def log_line(artefact: str, text: str, origin: object = "") -> None:
    """Write a log line of an artefact where no recorder is at hand."""
    if enabled(artefact):
        extra = {"origin": str(origin), "artefact": artefact}
        _LOGGERS[artefact].info("%s", text, extra=extra)


def enabled(artefact: str) -> bool:
    """Whether log lines of this artefact are wanted. An unknown artefact is a bug: KeyError."""
    return _LOGGERS[artefact].isEnabledFor(logging.INFO)
