"""What autograd knows of the tensors that leave a frame in which a backward ran.

    all of it used up    the graph holds all gradients and runs without autograd; such a tensor gets
                         a history that raises eager's error when it is asked for gradients
    nothing used up      the graph is run under autograd, which differentiates what it computes, the
                         gradients of a backward with `create_graph=True` among it

Refused, by a break before the backward: a history of which a part is used up. Leaves that began in
the frame may be differentiated to; where one leaves it, together with what was computed from it,
the graph breaks before its first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import CannotRebuild
from braze.capture.state.reconstruction_calls import rebuild_used_up
from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import (
    can_be_used_again,
    history_nodes,
    is_refused_by_autograd,
    refuses_always,
)
from braze.compat.torch.registered_ops import TRAINING_FORMS
from braze.ir.captured.frame import FromSource, NewCall, Recipe
from braze.ir.graphs.custom_gradient import without_custom_gradients
from braze.ir.graphs.graph import Graph, Node, Value, operands

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def used_up_recipe(interpreter: Interpreter, tensor: Any, result: Any) -> Recipe:
    """How a tensor that leaves the frame is made: `result(tensor)`, with a history that is used
    up where a backward of the frame did that. Raises CannotRebuild where it did that in part."""
    if not interpreter.backwards or not tensor.requires_grad or _is_live(interpreter, tensor):
        return result(tensor)
    used = {id(node) for *_, nodes in interpreter.backwards for node in nodes}
    is_used_up = all(id(node) in used for node in history_nodes([tensor.grad_fn]))
    if not is_used_up and not refuses_always(tensor.grad_fn, _freed(interpreter)):
        step = interpreter.backwards[0][1]
        raise CannotRebuild("a tensor with a history that backward() has used up in part", step)
    if is_used_up:
        # Nodes of leaves that this keeps alive would count as watched: while a loss is kept, each
        # later step would break at its backward.
        return NewCall(rebuild_used_up, (result(tensor),))
    ends = [getattr(node, "variable", None) for node in history_nodes([tensor.grad_fn])]
    found = [interpreter.guard_context.source_of(end) for end in ends if end is not None]
    sources = [FromSource(source) for source in found if source is not None]
    return NewCall(rebuild_used_up, (result(tensor), *sources))


def holds_all_gradients(interpreter: Interpreter, results: Sequence[object]) -> bool:
    """Whether a backward ran in the frame and nothing leaves it that can be differentiated."""
    return bool(interpreter.backwards) and not any(_is_live(interpreter, r) for r in results)


def check_hooks(interpreter: Interpreter, results: Sequence[object]) -> None:
    """Raise CannotRebuild where tensors of the frame have hooks that a later backward would call,
    or leave it with a gradient that they retain."""
    if not interpreter.hooked:
        return
    retaining = interpreter.retaining
    leaves = any(id(result) in retaining for result in results)
    if leaves or not holds_all_gradients(interpreter, results):
        step = interpreter.hooked[0]
        raise CannotRebuild("its backward comes after the frame", step, "gradient-hook")


def check_written(interpreter: Interpreter) -> None:
    """Raise CannotRebuild where a backward ran and an input leaves the frame with a new history."""
    steps = [step for _, step, *_ in interpreter.backwards[:1]] + interpreter.tracer.leaf_reads[:1]
    has_new_history = interpreter.tracer.recorder.has_new_history
    for fake, _ in interpreter.tracer.inputs if steps else ():
        place = fake.place
        is_new = place.tracked_write or has_new_history(place)
        if place.version and is_new and fake.requires_grad:
            raise CannotRebuild("an input with a history of this frame", min(steps))


def check_new_leaves(interpreter: Interpreter, results: Sequence[Any], graph: Graph) -> None:
    """Raise CannotRebuild where the graph under autograd would not give a result the history that
    it has: one that leads to a leaf made here which leaves the frame, or to nothing else."""
    reads = interpreter.tracer.leaf_reads
    if not reads:
        return
    left = interpreter.left_leaves
    tracked = _tracked(graph)
    for result, output in zip(results, graph.outputs):
        if is_refused_by_autograd(result):
            raise CannotRebuild(
                "a view that autograd refuses, since its base was written", reads[0]
            )
        if not _is_live(interpreter, result):
            continue
        ends = [getattr(node, "variable", None) for node in history_nodes([result.grad_fn])]
        value = output.value if output.alias is None else output.alias.base
        if value not in tracked or any(id(end) in left for end in ends if end is not None):
            raise CannotRebuild("a history that begins at a tensor made here", reads[0])


def without_autograd(graph: Graph) -> Graph:
    """A graph that holds all of its gradients, to be run without autograd."""
    graph = without_custom_gradients(graph)
    return replace(
        graph,
        nodes=tuple([_plain(node) for node in graph.nodes]),
        mutations=tuple([replace(mutation, tracked=False) for mutation in graph.mutations]),
    )


# --- private ---------------------------------------------------------------------------------


def _plain(node: Node) -> Node:
    """The node under no grad mode, where its kernel does the same."""
    op = TRAINING_FORMS.get(node.op, node.op) if node.grad_enabled else node.op
    return replace(node, op=op, grad_enabled=False)


def _freed(interpreter: Interpreter) -> dict[int, object]:
    """The nodes whose tensors are freed, by identity, which a node has while it is held."""
    return {id(node): node for _, _, freed, _ in interpreter.backwards for node in freed}


def _is_live(interpreter: Interpreter, tensor: Any) -> bool:
    """Whether a tensor has a history of which nothing is used up; one that cannot be asked may."""
    if is_refused_by_autograd(tensor):
        return True
    if not tensor.requires_grad or tensor.grad_fn is None:
        return False
    if can_be_used_again([tensor.grad_fn]):
        return True
    freed = _freed(interpreter)
    return all(id(node) not in freed for node in history_nodes([tensor.grad_fn]))


def _tracked(graph: Graph) -> set[Value]:
    """The values that have a history where the graph runs under autograd."""
    tracked = {value for value in graph.inputs if getattr(value.type, "requires_grad", False)}
    for node in graph.nodes:
        if node.op is aten.detach.default or not node.grad_enabled:
            continue
        if any(value in tracked for value in operands(node)):
            tracked.update(value for value in node.outputs if value is not None)
    return tracked
