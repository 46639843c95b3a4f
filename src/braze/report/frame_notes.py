"""What reports and logs say of a captured frame."""

from __future__ import annotations

import functools

from braze.ir.captured.frame import CapturedFrame
from braze.ir.captured.guard_tree import build_guard_tree
from braze.ir.captured.print_guards import format_guard, format_guard_tree
from braze.ir.graphs.print_graph import places_of, print_graph
from braze.report.guard_text import size_note
from braze.trace import CompileRecorder


def note_captured(captured: CapturedFrame, recorder: CompileRecorder) -> None:
    """Note a frame's guards, sizes and operators, and write the logs of them."""
    recorder.count("bytecodes", captured.bytecodes)
    recorder.note_guards(map(format_guard, captured.guards))
    recorder.emit("guards", lambda: format_guard_tree(build_guard_tree(captured.guards)))
    for text, place in captured.size_notes:
        recorder.note_size(functools.partial(size_note, text, place))
    recorder.note_ops(str(node.op) for node in captured.graph.nodes)
    recorder.keep("lines", lambda: "\n".join(places_of(captured.graph)))
    recorder.emit("graph", lambda: print_graph(captured.graph))
