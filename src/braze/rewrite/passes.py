"""The table of graph passes, in order. Each is a file: graph to graph, nothing changed in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from braze.ir.graphs.graph import Graph
from braze.ir.graphs.joint_graph import JointGraph
from braze.ir.graphs.verify_graph import verify_graph
from braze.ir.passes import NotePass, Pass, PassManager
from braze.rewrite.align_products import align_products
from braze.rewrite.complex_as_pairs import complex_as_pairs
from braze.rewrite.constants.fold_batch_norms import fold_batch_norms
from braze.rewrite.constants.fold_constants import fold_constants
from braze.rewrite.constants.fold_host_values import fold_host_values
from braze.rewrite.convert_conditions import convert_conditions
from braze.rewrite.decompose_encoder_layers import decompose_encoder_layers
from braze.rewrite.fuse_attention import fuse_attention
from braze.rewrite.fuse_convolutions import fuse_convolutions
from braze.rewrite.merge_common_subexpressions import merge_common_subexpressions
from braze.rewrite.plain_operators import plain_operators
from braze.rewrite.prefer_channels_last import (
    prefer_channels_last,
    prefer_channels_last_in_joint,
)
from braze.rewrite.recompute_attention import recompute_attention
from braze.rewrite.remove_dead_nodes import remove_dead_nodes
from braze.rewrite.remove_redundant_copies import remove_redundant_copies
from braze.rewrite.separate_attention_plans import separate_attention_plans
from braze.rewrite.separate_biases import separate_biases

if TYPE_CHECKING:
    from braze.options import Options

GraphPass: TypeAlias = "Pass[Graph, Options]"


def graph_pass(rewriter: Callable[[Graph], Graph], *, keeps_rounding: bool = True) -> GraphPass:
    """A row of `PASSES`, called as its function; the option `skip_passes` names it."""
    return Pass(
        rewriter.__name__, lambda graph, options: rewriter(graph), keeps_rounding=keeps_rounding
    )


# What is frozen is evaluated first, and once more in the layouts that passes choose. Small branches
# next, whose operators others may be one with. Layers that are one operator next, in whose place
# products and attention stand; attention next, whose products are none then, and its plans behind
# what may call it. Convolutions in inference have one layout with what is fused to them; others
# choose theirs behind that, and lose their biases on a GPU. Operators of our own next, most of
# which are copies then; copies next, so that what they hid from each other can merge, paddings of
# one matrix for several products too; what is on the CPU then, in a graph for a device, is
# evaluated; dead nodes last.
PASSES: tuple[GraphPass, ...] = (
    graph_pass(fold_constants),
    graph_pass(fold_batch_norms, keeps_rounding=False),
    graph_pass(convert_conditions),
    graph_pass(decompose_encoder_layers, keeps_rounding=False),
    graph_pass(fuse_attention, keeps_rounding=False),
    graph_pass(separate_attention_plans),
    Pass(
        fuse_convolutions.__name__,
        lambda graph, options: fuse_convolutions(graph, options.numerics == "fast"),
        keeps_rounding=False,
    ),
    graph_pass(prefer_channels_last, keeps_rounding=False),
    graph_pass(separate_biases, keeps_rounding=False),
    graph_pass(plain_operators),
    graph_pass(complex_as_pairs),
    graph_pass(remove_redundant_copies),
    graph_pass(align_products, keeps_rounding=False),
    graph_pass(merge_common_subexpressions),
    graph_pass(fold_constants),
    graph_pass(fold_host_values),
    graph_pass(remove_dead_nodes),
)


def rewrite(
    graph: Graph, options: Options, note: NotePass | None = None, inference: bool = False
) -> Graph:
    """The graph after every pass that is not skipped; each keeps values, strides, aliasing and
    random numbers. note: is told of each pass. inference: no backward follows, nor is it one."""
    chosen = [each for each in PASSES if is_run(each.name, options)]
    if not (inference and options.packed_weights):
        chosen = [each for each in chosen if each.name != fuse_convolutions.__name__]
    if not options.freeze:
        folding = (fold_constants.__name__, fold_batch_norms.__name__)
        chosen = [each for each in chosen if each.name not in folding]
    check = (lambda made, options: verify_graph(made)) if options.verify else None
    manager: PassManager[Graph, Options] = PassManager("rewrite", check, note)
    return manager.run(chosen, graph, options)


def choose_kernels(graph: Graph, options: Options) -> Graph:
    """A graph of which the backward is to be traced, with kernels of the library whose gradients
    are kernels, too."""
    return fuse_attention(graph) if is_run(fuse_attention.__name__, options) else graph


def rewrite_joint(joint: JointGraph, options: Options) -> JointGraph:
    """A graph with its backward, in layouts that both are better off with, and with scores of
    attention computed in both; each of the two goes through the other passes by itself."""
    if is_run(recompute_attention.__name__, options) and options.numerics != "eager":
        joint = recompute_attention(joint)
    if not is_run(prefer_channels_last.__name__, options):
        return joint
    return prefer_channels_last_in_joint(joint)


def is_run(name: str, options: Options) -> bool:
    """Whether the pass is neither skipped nor one that rounds otherwise where that is forbidden."""
    if name in options.skip_passes:
        return False
    return options.numerics != "eager" or all(p.keeps_rounding for p in PASSES if p.name == name)
