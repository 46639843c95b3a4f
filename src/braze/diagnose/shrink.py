"""Shrinks a graph to a few operators that fail in the same way.

Delta debugging (Zeller and Hildebrandt, 2002) over the nodes: what a node that was left out made is
an input, of the value that it had; so every set of nodes is a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from braze.ir.graphs.graph import Graph, Node, Output, Value, operands
from braze.ir.graphs.run_graph import run_graph
from braze.runtime.dispatch.shadow_check import copies_of

Fails: TypeAlias = Callable[[Graph, Sequence[Any]], bool]

MOST_TRIALS = 400


def shrink(
    graph: Graph, inputs: Sequence[Any], fails: Fails, first: Iterable[Node] = ()
) -> tuple[Graph, list[Any]]:
    """The graph of few nodes, and its inputs, for which `fails` holds; the graph itself where it
    has symbolic sizes, or where it fails only as a whole. first: nodes to be tried alone."""
    if graph.sizes.symbols() or graph.sizes.numbers:
        return graph, list(inputs)
    values = values_of(graph, inputs)
    trials = 0

    def holds(nodes: Sequence[Node]) -> bool:
        nonlocal trials
        trials += 1
        if not nodes or trials > MOST_TRIALS:
            return False
        try:
            return fails(*part_of(graph, nodes, values))
        except Exception:  # such a part is no program: a write without what it writes to
            return False

    nodes = list(graph.nodes)
    named = [node for node in nodes if node in set(first)]
    if named and holds(named):
        nodes = named
    elif not holds(nodes):
        return graph, list(inputs)
    return part_of(graph, _fewest(nodes, holds), values)


def values_of(graph: Graph, inputs: Sequence[Any]) -> dict[Value, Any]:
    """What every value of the graph is."""
    made = [v for node in graph.nodes for v in node.outputs if v is not None]
    whole = replace(graph, outputs=tuple(map(Output, made)), mutations=())
    given = copies_of(inputs)
    with torch.no_grad():
        results = run_graph(whole, given)
    values = dict(zip(graph.inputs, copies_of(inputs)))
    values.update((constant.value, constant.tensor) for constant in graph.constants)
    values.update(zip(made, results))
    return values


def part_of(
    graph: Graph, nodes: Sequence[Node], values: dict[Value, Any]
) -> tuple[Graph, list[Any]]:
    """The nodes as a graph, and its inputs. It returns what the nodes make and do not read."""
    made = dict.fromkeys(v for node in nodes for v in node.outputs if v is not None)
    read = dict.fromkeys(v for node in nodes for v in operands(node))
    constants = tuple([c for c in graph.constants if c.value in read])
    known = {c.value for c in constants}
    inputs = tuple([v for v in read if v not in made and v not in known])
    writes = tuple([m for m in graph.mutations if m.input in inputs and m.value in made])
    wanted = {output.value for output in graph.outputs}
    results = [v for v in made if v not in read or v in wanted]
    outputs = tuple(map(Output, results))
    part = replace(
        graph, inputs=inputs, constants=constants, nodes=tuple(nodes), outputs=outputs,
        mutations=writes, used_once=frozenset(),
    )  # fmt: skip
    return part, copies_of([values[v] for v in inputs])


# --- private ---------------------------------------------------------------------------------


def _fewest(nodes: list[Node], holds: Callable[[Sequence[Node]], bool]) -> list[Node]:
    """ddmin: parts alone, then all without a part, in ever smaller parts."""
    parts = 2
    while len(nodes) > 1:
        size = -(-len(nodes) // parts)
        pieces = [nodes[start : start + size] for start in range(0, len(nodes), size)]
        alone = next((piece for piece in pieces if len(pieces) > 1 and holds(piece)), None)
        if alone is not None:
            nodes, parts = alone, 2
            continue
        rests = [[n for n in nodes if n not in set(piece)] for piece in pieces]
        rest = next((rest for rest in rests if len(pieces) > 2 and holds(rest)), None)
        if rest is not None:
            nodes, parts = rest, max(parts - 1, 2)
        elif parts >= len(nodes):
            break
        else:
            parts = min(2 * parts, len(nodes))
    return nodes
