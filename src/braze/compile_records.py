"""What is kept of compiles: records of them, graph breaks, calls left to eager; and listeners.

`braze.trace` fills them in, reports read them.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from typing import Any, final

from braze.errors import warn
from braze.frozen import frozen
from braze.kept_texts import FailedGuard, KeptText, KernelNote, MemoryNote, PassNote, SizeNote
from braze.locks import make_lock


@final
@frozen
class BreakNote:
    """A graph break as reports show it.

    origin: `file:line` of the user's instruction.
    title: the kind of break, in a few words. prospect: whether a graph could ever hold it.
    stack: (file, line, function) of the user's frames, outermost first; the last one breaks.
    cost: what it costs each call.
    """

    code: str
    reason: str
    hint: str
    origin: str
    title: str = ""
    prospect: str = ""
    stack: tuple[tuple[str, int, str], ...] = ()
    cost: str = ""

    @property
    def graph_break(self) -> bool:
        """True, as of torch.compile's reasons of breaks."""
        return True

    @property
    def user_stack(self) -> traceback.StackSummary:
        """The stack as the standard library has it, with source lines."""
        frames = [traceback.FrameSummary(*place) for place in self.stack]
        return traceback.StackSummary.from_list(frames)

    @property
    def stack_text(self) -> str:
        """The stack as a traceback prints it; "" where none is known."""
        return "".join(self.user_stack.format()).rstrip()


@final
@frozen
class LeftToEager:
    """Why the program's own code ran instead of a compiled entry.

    code: of the catalogue of graph breaks, or of EAGER_CODES.
    origin: `file:line` of the user's instruction, or where the frame begins.
    function: whose frame it is, by its qualified name.
    is_rest: the rest of a frame behind a graph break, not a whole call.
    is_for_good: each call like it will be left to eager, too.
    may_raise: eager is expected to raise, and it is known afterwards only whether it did;
    returned: then the code that stands for it where eager returned, and `is_for_good` is of that.
    raised: what a graph raised, type and text, where the program may handle the same.
    is_asked_for: no error under `fullgraph=True` either: the user wants it so, or one graph holds
        the call and is not worth compiling.
    """

    code: str
    reason: str
    hint: str
    origin: str
    function: str
    is_rest: bool = False
    is_for_good: bool = False
    may_raise: bool = False
    returned: str = ""
    raised: str = ""
    is_asked_for: bool = False

    @property
    def text(self) -> str:
        """What runs eagerly, and why."""
        part = f"the rest of a call of {self.function}" if self.is_rest else f"{self.function}"
        return f"{part} runs eagerly: {self.reason} [{self.code}]"

    def __str__(self) -> str:
        return f"{self.origin}: {self.text}"


@final
@frozen
class CallableStatus:
    """What became of the calls of one compiled callable, since it was made or `reset`.

    name, origin: of the function, or of the module's class and its forward.
    calls: how often it was called; calls of functions inside of it are not counted.
    graphs: compiled graphs with at least one operator. entries: compiled pieces, each with its
        guards: a graph break makes two or more of one function.
    breaks: the graph breaks that end entries; times_broken: how often calls met one.
    left_to_eager: why calls, or rests of calls, ran the program's own code, and how often each.
    recompiles: compiles of a place that had an entry; last_recompile: why none served, or "".
    eager_kernels: why graphs run otherwise than by kernels of Braze.
    """

    name: str
    origin: str
    calls: int
    graphs: int
    entries: int
    breaks: tuple[BreakNote, ...]
    times_broken: int
    left_to_eager: Mapping[LeftToEager, int]
    recompiles: int
    last_recompile: str
    eager_kernels: tuple[str, ...]

    @property
    def calls_left(self) -> int:
        """Whole calls, of the callable or of a function inside of it, that ran eagerly."""
        return sum(count for why, count in self.left_to_eager.items() if not why.is_rest)

    @property
    def rests_left(self) -> int:
        """Rests of calls that ran eagerly."""
        return sum(count for why, count in self.left_to_eager.items() if why.is_rest)


@final
@frozen
class CompileRecord:
    """One frame, compiled once.

    function: qualified name; origin: `file:line` where the frame begins.
    outcome: "graph" (captured), "backward" (of a graph, compiled later), "refused" (left to
        eager: `graph_break`, `raised` or `once` says why) or "failed".
    stages: wall seconds by stage, in the order in which they began.
    passes: those of the stages that are made of passes, in the order in which they ran.
    graphs: the titles that a profiler shows its compiled graphs by.
    kernels: of all of them, for `explain`.
    began: seconds since 1970. spans: stages and passes, each with the seconds behind `began` at
        which it began and ended, in the order in which they ended.
    ops: the operators of the graph, one item a node; extern_ops: those run by ATen kernels.
    fallbacks: what ran otherwise than asked, one sentence each.
    raised: what the program raised while it was captured, so that it was left to eager; or "".
    once: why only this call was left to eager: the graph would have served no other; or "".
    paddings: sizes that recordings of calls are padded for, and why others are not, one sentence
        each; where that is asked for.
    failures: of a place that had entries, why each did not serve, most recently used first.
    sizes: what became of sizes and numbers that may change. For `explain` alone: program, the
        graph as a `torch.fx.GraphModule`; unfused: what was not computed in one kernel, and why;
        memory: of each graph.
    """

    function: str
    origin: str
    outcome: str
    seconds: float
    stages: tuple[tuple[str, float], ...]
    counters: Mapping[str, int]
    ops: tuple[str, ...]
    extern_ops: tuple[str, ...]
    guards: tuple[str, ...]
    graph_break: BreakNote | None
    fallbacks: tuple[str, ...]
    raised: str = ""
    once: str = ""
    paddings: tuple[str, ...] = ()
    passes: tuple[PassNote, ...] = ()
    graphs: tuple[str, ...] = ()
    kernels: tuple[KernelNote, ...] = ()
    began: float = 0.0
    spans: tuple[tuple[str, float, float], ...] = ()
    failures: tuple[FailedGuard, ...] = ()
    texts: tuple[KeptText, ...] = ()  # where there is a trace
    sizes: tuple[SizeNote, ...] = ()
    program: Any = None
    unfused: tuple[str, ...] = ()
    memory: tuple[MemoryNote, ...] = ()


@final
@frozen
class CompileEvent:
    """A compile begins ("begin"), or is at its end ("end"), with its record.

    function, origin: as in the record.
    """

    kind: str
    function: str
    origin: str
    record: CompileRecord | None = None


@final
class Listeners:
    """Who is told of every compile of the process; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._each: tuple[Callable[[CompileEvent], object], ...] = ()

    def add(self, listener: Callable[[CompileEvent], object]) -> Callable[[], None]:
        """Have one told of compiles that begin from now on. What ends that."""
        with self._lock:
            self._each = (*self._each, listener)

        def remove() -> None:
            with self._lock:
                self._each = tuple([each for each in self._each if each is not listener])

        return remove

    def tell(self, event: CompileEvent) -> None:
        """Call each in the thread that compiles. One that raises is warned of: no compile fails for
        it."""
        for each in self._each:
            try:
                each(event)
            except Exception as error:
                text = f"a listener of compiles raised {type(error).__name__}: {error}"
                warn(text)


LISTENERS = Listeners()
