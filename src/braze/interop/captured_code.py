"""A captured frame's graph as Python code, for logs and messages."""

from __future__ import annotations

from braze.interop.fx_graph import NotExpressible, to_fx
from braze.interop.fx_text import print_module, print_sizes
from braze.ir.captured.frame import CapturedFrame
from braze.ir.graphs.print_graph import print_graph
from braze.trace import CompileRecorder, enabled


def keep_code(captured: CapturedFrame, recorder: CompileRecorder) -> None:
    """Keep the torch-level graph where it is explained. One that no Python code says is None."""
    if captured.graph.nodes and recorder.journal.is_explained:
        try:
            recorder.note_program(to_fx(captured))
        except NotExpressible:
            recorder.note_program(None)


def log_code(captured: CapturedFrame, recorder: CompileRecorder) -> None:
    """Log the torch-level graph, where it is asked for."""
    if captured.graph.nodes and (enabled("graph_code") or enabled("graph_sizes")):
        try:
            module = to_fx(captured)
        except NotExpressible as problem:
            said = f"no Python code says this graph: {problem}\n{print_graph(captured.graph)}"
            recorder.emit("graph_code", said)
            return
        recorder.emit("graph_code", lambda: print_module(module))
        recorder.emit("graph_sizes", lambda: print_sizes(module))


def code_of(captured: CapturedFrame) -> str:
    """What was captured, as Python code, or as the graph's own text where no code says it; ""
    where no operator was."""
    if not captured.graph.nodes:
        return ""
    try:
        return print_module(to_fx(captured))
    except NotExpressible:
        return print_graph(captured.graph)
