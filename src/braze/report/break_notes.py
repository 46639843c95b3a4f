"""Graph breaks as reports and errors show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from braze.compat.python.code_objects import position_of
from braze.compile_records import BreakNote
from braze.errors import GraphBreakError
from braze.ir.captured.frame import FrameState, GraphBreak, Refused
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.peak_memory import bytes_of_value, has_known_sizes
from braze.report.amounts import as_bytes
from braze.trace import EAGER_CODES

# The page of the catalogue, which `braze.report.catalogue` renders; a section a code.
PAGE = "docs/graph_breaks.md"

# The cost of a frame that is refused.
WHOLE = "the whole call of this function runs eagerly"


class Kind(Protocol):
    """An entry of the catalogue, as a note needs it."""

    @property
    def title(self) -> str:
        """The kind of break, in a few words."""

    @property
    def prospect(self) -> str:
        """Whether a graph could ever hold it."""


def note_of(
    reason: GraphBreak | Refused,
    kind: Kind | None = None,
    frames: Iterable[FrameState] = (),
    cost: str = WHOLE,
) -> BreakNote:
    """A break or a refusal, for a record. frames: those that stand there, outermost first. cost:
    what the break costs each call."""
    title, prospect = ("", "") if kind is None else (kind.title, kind.prospect)
    stack = [_place(frame) for frame in frames]
    origin = reason.origin
    if origin.line:
        breaking = (origin.file, origin.line, origin.function)
        if stack and stack[-1][:2] == breaking[:2]:
            stack.pop()
        stack.append(breaking)
    return BreakNote(
        reason.code, reason.reason, reason.hint, str(origin), title, prospect, tuple(stack), cost
    )


def cost_of_break(graph: Graph) -> str:
    """What a break behind a graph costs each call: the results that it hands on through memory."""
    if not graph.nodes:
        return "no operator stands before it: nothing is handed on"
    passed = [*dict.fromkeys(output.value for output in graph.outputs)]
    if not passed:
        return "a graph more is started; no value is handed on to what comes behind it"
    values = "1 value goes" if len(passed) == 1 else f"{len(passed)} values go"
    held = as_bytes(sum(map(bytes_of_value, passed)))
    shown = held if all(map(has_known_sizes, passed)) else f"{held} and what has changing sizes"
    return f"a graph more is started; {values} through memory ({shown}), fused with nothing"


def graph_break(
    note: BreakNote, graph: str = "", *, fullgraph: bool = True, verbose: bool = False
) -> GraphBreakError:
    """The error of a break that is forbidden. graph: what was captured up to it, as text.
    fullgraph: it is forbidden by that option; else by a region of the program."""
    section = "calls-left-to-eager" if note.code in EAGER_CODES else note.code
    return GraphBreakError(
        note.reason,
        hint=note.hint,
        origin=note.origin,
        code=note.code,
        graph=graph,
        under="fullgraph=True" if fullgraph else "error_on_graph_break(True)",
        title=note.title,
        prospect=note.prospect,
        stack=note.stack_text,
        link=f"{PAGE}#{section}",
        verbose=verbose,
    )


def _place(frame: FrameState) -> tuple[str, int, str]:
    code = frame.code
    line = position_of(code, frame.offset)[0] or code.co_firstlineno
    return code.co_filename, line, code.co_qualname
