"""The options `repro_after` and `repro_level`: scripts of graphs that a stage fails on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.diagnose.generated_inputs import generated_inputs
from braze.diagnose.graph_walk import find_suspect
from braze.diagnose.shrink import shrink
from braze.diagnose.suspect import Suspect, is_same
from braze.errors import warn
from braze.interop.fx_graph import NotExpressible
from braze.interop.repro import write_repro
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.graph import Graph
from braze.options import Options
from braze.runtime.dispatch.shadow_check import copies_of


def repro_text(graph: Graph, options: Options) -> str:
    """A sentence that says where a script is that shows why the graph cannot be compiled."""
    try:
        inputs = generated_inputs(graph)
        found = find_suspect(graph, options, inputs)
        return _written(graph, inputs, found, options)
    except Exception as problem:  # of a graph that something is wrong with already
        return f"No script that shows it could be written: {problem}"


def check_first_call(made: GraphCallable, graph: Graph, options: Options) -> GraphCallable:
    """The graph's callable, whose first call goes through every stage beside eager, and warns where
    one is wrong."""
    seen: list[bool] = []

    def call(inputs: Sequence[Any]) -> Sequence[Any]:
        if not seen:
            seen.append(True)
            copies = copies_of(inputs)
            found = find_suspect(graph, options, copies)
            if found is not None:
                said = _written(graph, copies, found, options)
                warn(f"{found}\n{said}")
        return made(inputs)

    return call


# --- private ---------------------------------------------------------------------------------


def _written(
    graph: Graph, inputs: Sequence[object], found: Suspect | None, options: Options
) -> str:
    if found is not None and options.repro_level > 1:
        suspect = found

        def fails(part: Graph, values: Sequence[object]) -> bool:
            return is_same(suspect, find_suspect(part, options, values, suspect.stage))

        graph, inputs = shrink(graph, inputs, fails)
    try:
        path = write_repro(graph, inputs, str(found or "a stage fails on this graph"))
    except (NotExpressible, OSError) as problem:
        return f"No script that shows it could be written: {problem}"
    return f"This script shows it: {path}"
