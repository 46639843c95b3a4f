"""Shrinks a graph to a few operators that fail in the same way.

Delta debugging (Zeller and Hildebrandt, 2002) over the nodes: what a node that was left out made is
an input, of the value that it had; so every set of nodes is a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from braze.diagnose.fixed_sizes import with_fixed_sizes
from braze.ir.graphs.graph import Graph, Node, Output, Value, computed_symbol, operands
from braze.ir.graphs.graph_sizes import told_sizes
from braze.ir.graphs.run_graph import run_graph
from braze.ir.types import Size, TensorType
from braze.runtime.dispatch.shadow_check import copies_of
from braze.shapes.binding import NO_SIZES, bind_symbols
from braze.shapes.expr import Symbol
from braze.shapes.substitution import evaluate

Fails: TypeAlias = Callable[[Graph, Sequence[Any]], bool]

MOST_TRIALS = 400


def shrink(
    graph: Graph, inputs: Sequence[object], fails: Fails, first: Iterable[Node] = ()
) -> tuple[Graph, list[object]]:
    """The graph of few nodes, and its inputs, for which `fails` holds; the graph itself where it
    fails only as a whole. first: nodes to be tried alone.

    Symbolic sizes are those of the inputs where the graph still fails so, else they stay symbols.
    """
    values = values_of(graph, inputs)
    known = symbol_values(graph, inputs, values)
    trials = 0

    def holds(nodes: Sequence[Node]) -> bool:
        nonlocal trials
        trials += 1
        if not nodes or trials > MOST_TRIALS:
            return False
        return _holds(fails, *part_of(graph, nodes, values, known))

    nodes = list(graph.nodes)
    named = [node for node in nodes if node in set(first)]
    if named and holds(named):
        nodes = named
    elif not holds(nodes):
        return graph, list(inputs)
    small, given = part_of(graph, _fewest(nodes, holds), values, known)
    fixed = with_fixed_sizes(small, known)
    count = len(fixed.inputs)
    return (fixed, given[:count]) if _holds(fails, fixed, given[:count]) else (small, given)


def values_of(graph: Graph, inputs: Sequence[object]) -> dict[Value, object]:
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


def symbol_values(
    graph: Graph, inputs: Sequence[Any], values: Mapping[Value, Any]
) -> dict[Symbol, int]:
    """The number of each symbol in a call. inputs: the graph's, and then the numbers of its sizes;
    values: of the graph's values."""
    numbers: list[tuple[Any, Size]] = [*zip(inputs[len(graph.inputs) :], graph.sizes.numbers)]
    for value, given in zip(graph.inputs, inputs):
        if isinstance(value.type, TensorType):
            numbers += zip((*given.shape, *given.stride()), (*value.type.shape, *value.type.stride))
    known = {
        symbol: int(values[made])
        for node in graph.nodes
        for made in node.outputs
        if made is not None and (symbol := computed_symbol(node)) is not None
    }
    for binding in bind_symbols(numbers, graph.sizes.derived):
        rest = evaluate(binding.rest, known)
        place = rest if binding.place is None else (binding.place - rest) // binding.factor
        known[binding.symbol] = place
    for binding in graph.sizes.following(known.keys()):
        known[binding.symbol] = evaluate(binding.rest, known)
    return known


def part_of(
    graph: Graph, nodes: Sequence[Node], values: dict[Value, object], known: Mapping[Symbol, int]
) -> tuple[Graph, list[object]]:
    """The nodes as a graph, and its inputs, the numbers of its sizes at their end. It returns what
    the nodes make and do not read. known: the number of each symbol."""
    made = dict.fromkeys(v for node in nodes for v in node.outputs if v is not None)
    read = dict.fromkeys(v for node in nodes for v in operands(node))
    constants = tuple([c for c in graph.constants if c.value in read])
    constant = {c.value for c in constants}
    inputs = tuple([v for v in read if v not in made and v not in constant])
    writes = tuple([m for m in graph.mutations if m.input in inputs and m.value in made])
    wanted = {output.value for output in graph.outputs}
    results = [v for v in made if v not in read or v in wanted]
    outputs = tuple(map(Output, results))
    part = replace(
        graph, inputs=inputs, constants=constants, nodes=tuple(nodes), outputs=outputs,
        mutations=writes, sizes=NO_SIZES, used_once=frozenset(),
    )  # fmt: skip
    sizes = told_sizes(part, graph.sizes.derived)
    numbers = [evaluate(number, known) for number in sizes.numbers]
    return replace(part, sizes=sizes), [*copies_of([values[v] for v in inputs]), *numbers]


# --- private ---------------------------------------------------------------------------------


def _holds(fails: Fails, graph: Graph, inputs: Sequence[object]) -> bool:
    try:
        return fails(graph, inputs)
    except Exception:  # such a part is no program: a write without what it writes to
        return False


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
