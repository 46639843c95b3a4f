"""The list of graph passes, in order. Each is a file: graph to graph, nothing changed in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from braze.ir.graphs.graph import Graph
from braze.ir.graphs.joint_graph import JointGraph
from braze.rewrite.align_products import align_products
from braze.rewrite.complex_as_pairs import complex_as_pairs
from braze.rewrite.convert_conditions import convert_conditions
from braze.rewrite.fuse_attention import fuse_attention
from braze.rewrite.merge_common_subexpressions import merge_common_subexpressions
from braze.rewrite.plain_operators import plain_operators
from braze.rewrite.prefer_channels_last import (
    prefer_channels_last,
    prefer_channels_last_in_joint,
)
from braze.rewrite.remove_dead_nodes import remove_dead_nodes
from braze.rewrite.remove_redundant_copies import remove_redundant_copies
from braze.rewrite.separate_attention_plans import separate_attention_plans

if TYPE_CHECKING:
    from braze.options import Options

Pass: TypeAlias = Callable[[Graph], Graph]

# Small branches first, whose operators others may be one with. Attention next, whose products are
# none then, and its plans behind what may call it. Operators of our own next, most of which are
# copies then; copies next, so that what they hid from each other can merge, paddings of one matrix
# for several products too; dead nodes last.
PASSES: tuple[Pass, ...] = (
    convert_conditions,
    fuse_attention,
    separate_attention_plans,
    prefer_channels_last,
    plain_operators,
    complex_as_pairs,
    remove_redundant_copies,
    align_products,
    merge_common_subexpressions,
    remove_dead_nodes,
)


# Library calls behind them round in another order.
_OTHER_KERNELS = frozenset({"fuse_attention", "prefer_channels_last", "align_products"})


def rewrite(graph: Graph, options: Options) -> Graph:
    """The graph after every pass that is not skipped; each keeps values, strides, aliasing and
    random numbers."""
    skipped = _skipped(options)
    for graph_pass in PASSES:
        if graph_pass.__name__ not in skipped:
            graph = graph_pass(graph)
    return graph


def choose_kernels(graph: Graph, options: Options) -> Graph:
    """A graph of which the backward is to be traced, with kernels of the library whose gradients
    are kernels, too."""
    if fuse_attention.__name__ in _skipped(options):
        return graph
    return fuse_attention(graph)


def rewrite_joint(joint: JointGraph, options: Options) -> JointGraph:
    """A graph with its backward, in layouts that both are better off with; each of the two goes
    through the other passes by itself."""
    if prefer_channels_last.__name__ in _skipped(options):
        return joint
    return prefer_channels_last_in_joint(joint)


def _skipped(options: Options) -> set[str]:
    skipped = {*options.skip_passes}
    return skipped | _OTHER_KERNELS if options.numerics == "eager" else skipped
