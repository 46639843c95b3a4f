"""Versions of inputs that a graph writes to, and of results that the program wrote to.

A compiled graph writes each input once, and makes each result as one value. The program may have
written several times, which autograd counts; what it wrote through `x.data` autograd does not count
for `x`, and of running statistics the operator does not say that it writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.compat.torch.autograd_engine import VERSION, note_write, set_versions
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.graphs.graph import Graph
from braze.ir.picking import items_at


def keeping_versions(run: GraphCallable, graph: Graph) -> GraphCallable:
    """A callable of the graph that raises the version of each input that it writes to by one: what
    the program counts otherwise is made up for. Where it writes each once, it is what was given."""
    return _raising(putting_back(run, graph, once=True), graph)


def putting_back(run: GraphCallable, graph: Graph, once: bool = False) -> GraphCallable:
    """A callable that writes as often as the program did (or each input once), but does not know
    which of its writes count: versions of inputs that were written to without are put back. Tensors
    that inference mode made have none."""
    counts = {mutation.input: mutation.count for mutation in graph.mutations}
    places = [number for number, value in enumerate(graph.inputs) if counts.get(value) == 0]
    if not places:
        return run
    counted = [
        (number, 1 if once else counts[value])
        for number, value in enumerate(graph.inputs)
        if counts.get(value)
    ]

    def run_and_put_back(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        written = tuple([t for t in [inputs[place] for place in places] if not t.is_inference()])
        others = [(inputs[n], count) for n, count in counted if not inputs[n].is_inference()]
        versions = tuple(map(VERSION, written))
        try:
            return run(inputs)
        finally:
            _put_back(written, versions, others)

    return run_and_put_back


def give_versions(results: Sequence[torch.Tensor], versions: Sequence[int]) -> None:
    """Give results that the program wrote to the versions that they have in eager. Those with a
    history here, which may have saved them as they are, keep theirs; in inference mode there are
    none. A recording's results may be the last call's: their versions do not add up."""
    told = [
        (result, version)
        for result, version in zip(results, versions)
        if not (result.requires_grad or result.is_inference())
    ]
    set_versions(tuple([result for result, _ in told]), tuple([version for _, version in told]))


def counted_again(graph: Graph) -> list[int]:
    """The numbers of inputs that the program writes to more than once, each as often as it is
    written to again."""
    numbers = {value: number for number, value in enumerate(graph.inputs)}
    return [numbers[m.input] for m in graph.mutations for _ in range(m.count - 1)]


# --- private ---------------------------------------------------------------------------------


def _put_back(
    uncounted: tuple[torch.Tensor, ...],
    versions: tuple[int, ...],
    counted: Sequence[tuple[torch.Tensor, int]],
) -> None:
    """Views of one memory have one version: what was counted for other views of it stays so."""
    after = [VERSION(tensor) for tensor, _ in counted]
    set_versions(uncounted, versions)
    for (tensor, count), version in zip(counted, after):
        if VERSION(tensor) != version:
            note_write((tensor,) * count)


def _raising(run: GraphCallable, graph: Graph) -> GraphCallable:
    """Raises versions by what the graph's own writes do not."""
    again = counted_again(graph)
    made = [n for n, output in enumerate(graph.outputs) if output.version]
    if not again and not made:
        return run
    inputs_of, results_of = items_at(again), items_at(made)
    versions = tuple([graph.outputs[n].version for n in made])

    def run_and_raise(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        written = inputs_of(inputs)  # the call may empty the list
        results = run(inputs)
        note_write(written)
        give_versions(results_of(results), versions)
        return results

    return run_and_raise
