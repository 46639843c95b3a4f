"""`backward()` and `torch.autograd.grad()` in a frame: PyTorch's engine runs on the fake tensors.

    loss.backward()      the operators of the backward follow those of the forward in one graph;
                         `.grad` of the leaves is state: read, added to in place, and written back

Such a frame's graph holds all of its gradients and runs without autograd. What leaves the frame
with a history that the backward used up is given one that raises eager's error when it is asked
for gradients; a history that could still be used makes the frame break before the backward.
Refused, by a break: `create_graph=True`, gradients that flow out to histories from before the
frame, leaves with hooks (`leaf_hooks.py` looks), anomaly mode, and where eager refuses
to go through a reentrant checkpoint.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call, unnoted_call
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.training.checkpointing import check_checkpoints
from braze.compat.torch.autograd_engine import (
    executed_nodes,
    history_nodes,
    run_engine,
    saves_tensors,
)
from braze.ir.captured.guard import GuardKind
from braze.ir.captured.source import AttributeSource
from braze.ir.types import TensorType
from braze.tracing.fake_tensor import Place, TracedTensor, new_fake
from braze.tracing.shape_rules.strides import is_dense, same_layout

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@answers(torch.Tensor.backward)
def tensor_backward(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    """`tensor.backward(gradient, retain_graph, create_graph, inputs)`."""
    given = _bound(torch.Tensor.backward, args, kwargs)
    tangents = [given["gradient"]]
    _backward(interpreter, [given["self"]], tangents, given)


@answers(torch.autograd.backward)
def backward(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """`torch.autograd.backward(tensors, grad_tensors, ...)`."""
    given = _bound(torch.autograd.backward, args, kwargs)
    if given["grad_variables"] is not None:
        raise _needs_history("torch.autograd.backward(grad_variables=)")
    tensors = _listed(interpreter, given["tensors"])
    if not tensors:
        raise _needs_history("torch.autograd.backward of nothing")
    tangents = _listed(interpreter, given["grad_tensors"], len(tensors))
    _backward(interpreter, tensors, tangents, given)


@answers(torch.autograd.grad)
def grad(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> Any:
    """`torch.autograd.grad(outputs, inputs, ...)`."""
    given = _bound(torch.autograd.grad, args, kwargs)
    if given["outputs"] is None or given["inputs"] is None:
        raise _needs_history("torch.autograd.grad of None")  # which raises
    outputs = _listed(interpreter, given["outputs"])
    inputs = _listed(interpreter, given["inputs"])
    check_checkpoints(interpreter, outputs, inputs, "torch.autograd.grad")
    if given["is_grads_batched"]:
        raise _needs_history("torch.autograd.grad(is_grads_batched=True)")
    _check(interpreter, outputs)
    creates = bool(given["create_graph"])
    retain = creates if given["retain_graph"] is None else bool(given["retain_graph"])
    tangents = _listed(interpreter, given["grad_outputs"], len(outputs))
    tangents = _tangents(interpreter, outputs, tangents, creates)
    materialize = bool(given["materialize_grads"])
    unused = given["allow_unused"]
    may_miss = materialize if unused is None else bool(unused)
    _check_named(interpreter, inputs)
    _check_older(interpreter, outputs, inputs)
    arguments = (outputs, tangents, retain, inputs, may_miss, creates)
    interpreter.runs_backward = True
    made = unnoted_call(interpreter, run_engine, arguments, {})
    _note(interpreter, outputs, retain, inputs)
    if materialize:
        pairs = zip(made, inputs, strict=True)
        made = [
            unnoted_call(interpreter, torch.zeros_like, (t,), {}) if g is None else g
            for g, t in pairs
        ]
    return tuple(made)


# --- private ---------------------------------------------------------------------------------


def _bound(function: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _needs_history(what: str) -> BreakRequested:
    return BreakRequested("unsupported-tensor", f"{what} needs the gradients themselves")


def _listed(interpreter: Interpreter, given: Any, count: int = 0) -> list[object]:
    """One tensor or a sequence of them, as a list; `count` times None for None."""
    if given is None:
        return [None] * count
    if type(given) is TracedTensor:
        return [given]
    given = interpreter.side_effects.native(given)
    if type(given) not in (list, tuple) or not all(
        t is None or type(t) is TracedTensor for t in given
    ):
        raise _needs_history("a backward of such arguments")
    return list(given)


def _check(interpreter: Interpreter, results: Sequence[object]) -> None:
    if interpreter.transforms or interpreter.request.is_watched is None:
        raise _needs_history("backward()")
    if torch.is_anomaly_enabled():
        raise _needs_history("backward() under anomaly detection")
    if not all(type(result) is TracedTensor for result in results):
        raise _needs_history("backward() of such a tensor")


def _tangents(
    interpreter: Interpreter, results: Sequence[Any], given: Sequence[Any], creates: bool
) -> list[Any]:
    """The incoming gradients: ones for a scalar of which none is given. creates: they may have a
    history of their own."""
    made: list[Any] = []
    if len(given) != len(results):
        raise _needs_history("a backward of such arguments")
    for result, tangent in zip(results, given):
        if tangent is None and result.requires_grad and result.numel() == 1:
            tangent = unnoted_call(interpreter, torch.ones_like, (result.detach(),), {})
        elif (
            tangent is None
            or (tangent.requires_grad and not creates)
            or tangent.shape != result.shape
        ):
            raise _needs_history("a backward from such gradients")
        made.append(tangent)
    return made


def _backward(
    interpreter: Interpreter,
    results: Sequence[Any],
    given: Sequence[object],
    options: dict[str, object],
) -> None:
    only = options["inputs"]
    if only is not None:
        only = _listed(interpreter, only)
        check_checkpoints(interpreter, results, only, "backward(inputs=)")
    _check(interpreter, results)
    if only is not None:
        _check_named(interpreter, only)
        _check_older(interpreter, results, only)
    if options["create_graph"]:
        raise _needs_history("backward(create_graph=True)")
    tangents = _tangents(interpreter, results, given, False)
    leaves = _leaves(interpreter) if only is None else only
    retain = bool(options["retain_graph"])
    start = interpreter.tracer.recorder.new_value(results[0].place.type).index
    arguments = (results, tangents, retain, leaves, True, False)
    interpreter.runs_backward = True
    made = unnoted_call(interpreter, run_engine, arguments, {})
    _note(interpreter, results, retain, only)
    found = [(leaf, g) for leaf, g in zip(leaves, made, strict=True) if g is not None]
    _check_leaves(interpreter, [leaf for leaf, _ in found])
    owned: set[Place] = set()
    for leaf, gradient in found:
        _accumulate(interpreter, leaf, _own(interpreter, leaf, gradient, start, owned))


def _leaves(interpreter: Interpreter) -> list[Any]:
    inputs = [fake for fake, _ in interpreter.tracer.inputs]
    leaves = [*inputs, *interpreter.guard_context.new_leaves.values()]
    return [leaf for leaf in leaves if leaf.requires_grad]


def _note(
    interpreter: Interpreter, results: Sequence[Any], keeps: bool, ends: Sequence[object] | None
) -> None:
    roots = [result.grad_fn for result in results if result.grad_fn is not None]
    kept = {id(call.node) for call in interpreter.applications if not call.saved}
    executed = [] if keeps else executed_nodes(roots, ends)
    freed = [node for node in executed if id(node) not in kept and saves_tensors(node)]
    everything = history_nodes(roots) if ends is None and not keeps else []
    interpreter.backwards.append((roots, interpreter.outer_step, freed, everything))


def _check_named(interpreter: Interpreter, tensors: Sequence[Any]) -> None:
    """As below, of what a backward is asked for: a history from before the frame may lead there,
    unseen here. Of what does not need gradients outside it cannot be asked whether one does."""
    if not all(type(tensor) is TracedTensor for tensor in tensors):
        raise _needs_history("a backward to such arguments")
    leaves = [t for t in tensors if t.requires_grad and t.is_leaf]
    _check_leaves(interpreter, leaves)
    reals = [real for _, real in interpreter.tracer.inputs if real is not None]
    if any(_began_here(interpreter, leaf) for leaf in leaves) and any(
        real.requires_grad and not real.is_leaf for real in reals
    ):
        raise _needs_history("backward() to what began to need gradients, with an older history,")


def _check_older(
    interpreter: Interpreter, results: Sequence[object], asked: Sequence[object]
) -> None:
    """Gradients that are asked for must not flow through a history from before the frame, which may
    lead from an argument that has one to anything that was there already. That argument itself
    may be asked for, where it has no hooks; guarded."""
    roots = [r.grad_fn for r in results if type(r) is TracedTensor and r.grad_fn is not None]
    nodes = history_nodes(roots)
    reached = set(map(id, nodes))  # which are nodes' own as long as the list holds these
    older = [
        (fake, real)
        for fake, real in interpreter.tracer.inputs
        if real is not None and real.requires_grad and not real.is_leaf
    ]
    older = [(x, real) for x, real in older if any(id(end) in reached for end in _ends_of(x))]
    guard_context = interpreter.guard_context
    for fake, real in older:
        for tensor in asked:
            assert type(tensor) is TracedTensor  # `_check_named`
            if tensor is not fake:
                if interpreter.tracer.real_of(tensor) is not None:
                    raise _needs_history("gradients through a history from before the frame")
                continue
            if real._backward_hooks or real.retains_grad:
                raise _needs_history("gradients of a tensor with hooks")
            source = guard_context.known[id(fake)][1]
            for name, value in (("_backward_hooks", None), ("retains_grad", False)):
                if getattr(real, name) is value:
                    guard_context.guard(AttributeSource(source, name), GuardKind.ID_MATCH, value)


def _ends_of(fake: TracedTensor) -> list[Any]:
    """The nodes at which the history of an argument ends, as the trace has it."""
    return [node for node in history_nodes([fake.grad_fn]) if hasattr(node, "variable")]


def _began_here(interpreter: Interpreter, leaf: Any) -> bool:
    real = interpreter.tracer.real_of(leaf)
    switched = id(leaf) in interpreter.guard_context.switched
    return switched and real is not None and not real.requires_grad


def _check_leaves(interpreter: Interpreter, leaves: Sequence[Any]) -> None:
    """Gradients must end at leaves from outside that nobody watches; guarded."""
    guard_context = interpreter.guard_context
    for leaf in leaves:
        if id(leaf) in guard_context.new_leaves or _began_here(interpreter, leaf):
            continue
        real = interpreter.tracer.real_of(leaf)
        if real is None or not real.is_leaf:
            raise _needs_history("backward() of a history from before the frame")
        is_watched = interpreter.request.is_watched
        if is_watched is None or is_watched(real):
            raise _needs_history("backward() to a leaf with hooks")
        guard_context.unwatched[id(leaf)] = guard_context.known[id(leaf)][1]
        guard_context.watched_at = interpreter.origin("backward")


def _own(
    interpreter: Interpreter, leaf: Any, gradient: Any, start: int, owned: set[Place]
) -> object:
    """The gradient as a tensor of its own, in the strides that eager's accumulation gives it."""
    place = gradient.place
    base = place.base or place
    kind, wanted = place.type, leaf.place.type
    if 0 in wanted.shape and _is_restrided(wanted, kind.stride):
        return unnoted_call(
            interpreter,
            torch.empty_strided,
            (wanted.shape, wanted.stride),
            {"dtype": kind.dtype, "device": kind.device},
        )
    keeps = (
        same_layout(kind.shape, wanted.stride, kind.stride)
        if is_dense(wanted.shape, wanted.stride)
        else gradient.is_contiguous()
    )
    is_new = base.value.index > start and base not in owned and base.type.shape is not None
    if keeps and is_new and base.input_index < 0 and gradient.numel() == _size(base.type.shape):
        owned.add(base)
        return new_fake(Place(kind, interpreter.tracer.value_of(gradient)))
    with torch.no_grad():
        if keeps or not is_dense(wanted.shape, wanted.stride):
            return unnoted_call(interpreter, torch.Tensor.contiguous, (gradient.clone(),), {})
        empty = torch.empty_strided(
            wanted.shape, wanted.stride, dtype=kind.dtype, device=kind.device
        )
        return unnoted_call(interpreter, torch.Tensor.copy_, (empty, gradient), {})


def _is_restrided(leaf: TensorType, found: Sequence[object]) -> bool:
    """Whether eager's accumulation makes a gradient without elements anew, in the strides of the
    leaf: where these leave no gaps and the gradient has others."""
    several = [(n, step) for n, step in zip(leaf.shape, leaf.stride) if n > 1]
    sizes, steps = tuple([n for n, _ in several]), tuple([step for _, step in several])
    pairs = zip(leaf.shape, leaf.stride, found)
    return is_dense(sizes, steps) and any(n != 1 and a != b for n, a, b in pairs)


def _size(shape: Sequence[Any]) -> int:
    count = 1
    for size in shape:
        count = count * size
    return count


def _accumulate(interpreter: Interpreter, leaf: Any, gradient: object) -> None:
    """`leaf.grad` becomes the gradient, or is added to in place."""
    before = interpreter.attribute(leaf, "grad")
    if before is None and interpreter.tracer.real_of(leaf) is None:
        interpreter.new_gradients[id(leaf)] = gradient
        return
    if before is None:
        interpreter.side_effects.slots[(id(leaf), "grad")] = (leaf, gradient)
        interpreter.assigned_gradients[id(gradient)] = gradient
        return
    if type(before) is not TracedTensor or before.requires_grad:
        raise _needs_history("backward() to such a gradient")
    with torch.no_grad():
        leaf_call(interpreter, torch.Tensor.add_, (before, gradient), {})
