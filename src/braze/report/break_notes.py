"""Graph breaks as reports and errors show them."""

from __future__ import annotations

from braze.errors import GraphBreakError
from braze.ir.captured.frame import GraphBreak, Refused
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.print_graph import print_graph
from braze.trace import BreakNote


def note_of(reason: GraphBreak | Refused) -> BreakNote:
    """A break or a refusal, for a record."""
    return BreakNote(reason.code, reason.reason, reason.hint, str(reason.origin))


def graph_break(
    note: BreakNote, graph: Graph | None = None, *, fullgraph: bool = True
) -> GraphBreakError:
    """The error of a break that is forbidden, with the graph up to it. fullgraph: by that option;
    else by a region of the program."""
    return GraphBreakError(
        note.reason,
        hint=note.hint,
        origin=note.origin,
        code=note.code,
        graph=print_graph(graph) if graph is not None and graph.nodes else "",
        under="fullgraph=True" if fullgraph else "error_on_graph_break(True)",
    )
