"""A graph with its own backward: joined in one numbering, and split into the two that run.

    Graph --trace_joint--> JointGraph --partition--> ForwardBackward

In both, a *result* is what autograd is told of: the owned outputs of the graph in order, then the
new contents of inputs that were written to under gradients. Outputs that are views of inputs or
of results are made outside of the compiled graphs, where autograd sees them.
"""

from __future__ import annotations

import sys
from typing import TypeAlias, final

from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Output, Value
from braze.ir.graphs.print_graph import print_graph
from braze.ir.types import Size, TensorType
from braze.shapes.expr import Expr, Symbol
from braze.shapes.facts import Assumed


@final
@frozen
class Role:
    """What a compiled graph is for its caller.

    takes_inputs: a call empties the list of its inputs and frees each after its last use.
    kept_from: the program sees the results before that number; the others are saved for a
    backward, or are gradients on their way.
    parameters: of a backward, inputs that are the forward's and want a gradient: most stay where
    they are from call to call.
    """

    takes_inputs: bool = False
    kept_from: int = sys.maxsize
    parameters: frozenset[int] = frozenset()

    @property
    def saved_from(self) -> int:
        """The results from that number on wait for a backward."""
        return sys.maxsize if self.takes_inputs else self.kept_from


PLAIN = Role()


@final
@frozen(eq=False)
class JointGraph:
    """A graph continued by the operators that autograd runs in its backward.

    forward: the graph, traced again; `backward` goes on in its numbering.
    results: see above. writes: per result that is an input's new contents, the input's number;
        they are the last results.
    tangents: per result, its incoming gradient (an input of the backward); None where no gradient
        can arrive, or none is given in this variant.
    gradients: per input of `forward`, its gradient; None where it has none.
    is_differentiable: per result, whether it requires grad.
    source: the graph that was traced, in the symbols of this one. plain: what it was before kernels
        of the library were chosen whose gradients have none themselves; None: the same.
    assumed: what was assumed of its symbols that it did not say. derived: as in `Graph.sizes`, of
        all symbols here.
    freed_by: per result, the results whose backward (without `retain_graph`) leaves no other to
        this one: in eager those whose histories share a node that saves a tensor.
    reached_from: per input of `forward`, the results whose backward comes to it.
    moved: images of the forward that are computed in channels-last layout, and what they were, row
        by row, where the graph was traced.
    constant: values of the forward that their operator takes for constants in its gradients, as
        the statistics of a norm.
    """

    forward: Graph
    backward: tuple[Node, ...]
    results: tuple[Value, ...]
    writes: tuple[int, ...]
    tangents: tuple[Value | None, ...]
    gradients: tuple[Value | None, ...]
    is_differentiable: tuple[bool, ...]
    source: Graph
    assumed: tuple[Assumed, ...] = ()
    derived: tuple[tuple[Symbol, Expr], ...] = ()
    freed_by: tuple[frozenset[int], ...] = ()
    reached_from: tuple[frozenset[int], ...] = ()
    moved: tuple[tuple[Value, Value], ...] = ()
    plain: Graph | None = None
    constant: frozenset[Value] = frozenset()


@final
@frozen(eq=False)
class SavedInput:
    """Input `index` of the forward graph, kept for the backward.

    as_view: eager keeps a view of it (a weight's transpose), which goes on naming its memory where
    the program gives the input another one (`p.data = ...`); what it keeps itself gets the other.
    """

    index: int
    as_view: bool = False


@final
@frozen(eq=False)
class SavedOutput:
    """Output `index` of the forward graph, kept for the backward."""

    index: int


Saved: TypeAlias = SavedInput | SavedOutput


@final
@frozen(eq=False)
class ViewOfInput:
    """An output of the frame that views input `index` after the writes, as `output` says."""

    index: int
    output: Output


@final
@frozen(eq=False)
class ViewOfResult:
    """An output of the frame that views result `index`, as `output` says."""

    index: int
    output: Output


@final
@frozen(eq=False)
class Backward:
    """The backward for one choice of incoming gradients.

    graph: its inputs are the saved values, then the tangents of `tangents` (numbers of results);
        its outputs are the gradients. The numbers of `graph.sizes` are symbols of the forward.
    gradients: per input of the forward graph, the number of its gradient in `graph.outputs`.
    """

    graph: Graph
    tangents: tuple[int, ...]
    gradients: tuple[int | None, ...]


@final
@frozen(eq=False)
class BackwardStage:
    """One of the graphs that a backward is divided into; they run one behind the other.

    takes: per input of `graph`, where its value is held: at the number of the whole backward's
        input, or where a stage before this one has put it.
    gradients: per input of the forward graph in this stage's group, the number of its gradient in
        `graph.outputs`; None where it has none.
    keeps: (number in `graph.outputs`, where it is held) of what later stages take.
    """

    graph: Graph
    takes: tuple[int, ...]
    gradients: tuple[int | None, ...]
    keeps: tuple[tuple[int, int], ...]


@final
@frozen(eq=False)
class ForwardBackward:
    """What runs in the place of a graph whose inputs need gradients.

    forward: its first outputs are the results; further ones are saved. Inputs that no gradient
        goes through are written by the graph itself.
    saved: what the backward needs, in the order of its inputs.
    saved_values: the values of `saved` in the numbering of the joint graph.
    backward: for all tangents at once.
    is_differentiable: per result.
    writes: (input, result): after the call the input gets the result's contents under autograd.
    outputs: per output of the frame, the number of a result, or a view made outside.
    freed_by, reached_from, moved: as of the joint graph.
    computed: symbols of numbers that the forward computes; its last outputs hold them.
    written_again: inputs of `writes` that the program writes to more than once, each as often as it
        does so again: autograd counts that.
    """

    forward: Graph
    saved: tuple[Saved, ...]
    saved_values: tuple[Value, ...]
    backward: Backward
    is_differentiable: tuple[bool, ...]
    writes: tuple[tuple[int, int], ...]
    outputs: tuple[int | ViewOfInput | ViewOfResult, ...]
    freed_by: tuple[frozenset[int], ...] = ()
    reached_from: tuple[frozenset[int], ...] = ()
    computed: tuple[Symbol, ...] = ()
    moved: tuple[tuple[Value, Value], ...] = ()
    written_again: tuple[int, ...] = ()


def backward_role(pair: ForwardBackward) -> Role:
    """What the backward is for its caller."""
    kinds = [value.type for value in pair.forward.inputs]
    parameters = [
        number
        for number, saved in enumerate(pair.saved)
        if isinstance(saved, SavedInput)
        and isinstance(kind := kinds[saved.index], TensorType)
        and kind.requires_grad
    ]
    return Role(takes_inputs=True, kept_from=0, parameters=frozenset(parameters))


def stage_role(stage: BackwardStage, whole: Role) -> Role:
    """What a stage is for its caller. whole: what the backward is."""
    parameters = [n for n, place in enumerate(stage.takes) if place in whole.parameters]
    return Role(takes_inputs=True, kept_from=0, parameters=frozenset(parameters))


def tangent_stride(kind: TensorType) -> tuple[Size, ...]:
    """The strides in which the gradient of a result comes in: the result's own; contiguous ones
    where elements of the result share memory, since each has a gradient of its own."""
    shape, stride = tuple(kind.shape), tuple(kind.stride)
    if not any(type(step) is int and not step for step in stride):
        return stride
    made: list[Size] = []
    following: Size = 1
    for size in reversed(shape):
        made.append(following)
        following = following * (max(size, 1) if type(size) is int else size)
    return tuple(reversed(made))


def joint_as_graph(joint: JointGraph) -> Graph:
    """The joint graph as one graph: the tangents are further inputs, the gradients outputs."""
    forward = joint.forward
    gradients = [Output(gradient) for gradient in joint.gradients if gradient is not None]
    return Graph(
        inputs=(*forward.inputs, *(t for t in joint.tangents if t is not None)),
        constants=forward.constants,
        nodes=(*forward.nodes, *joint.backward),
        outputs=(*forward.outputs, *gradients),
        mutations=forward.mutations,
        sizes=forward.sizes,
    )


def print_joint(joint: JointGraph) -> str:
    """The text of a joint graph, tangents and gradients named."""
    lines = [print_graph(joint_as_graph(joint)).removesuffix("}\n").rstrip("\n")]
    lines += [
        f"  tangent {tangent} of result {number}"
        for number, tangent in enumerate(joint.tangents)
        if tangent is not None
    ]
    lines += [
        f"  gradient {gradient} of input {number}"
        for number, gradient in enumerate(joint.gradients)
        if gradient is not None
    ]
    return "\n".join([*lines, "}", ""])


def print_pair(pair: ForwardBackward) -> str:
    """The text of both graphs, and what passes from one to the other."""
    saved = [
        f"input {one.index}" if isinstance(one, SavedInput) else f"output {one.index}"
        for one in pair.saved
    ]
    return (
        f"forward {print_graph(pair.forward)}"
        f"saved: {', '.join(saved) or 'nothing'}\n"
        f"backward {print_graph(pair.backward.graph)}"
    )
