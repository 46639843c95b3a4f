"""Checkpoints of a frame: what a second call of their function would do, and the gradients that the
reentrant kind refuses.

    y = checkpoint(layer, x, use_reentrant=True)
    torch.autograd.grad(y.sum(), x)     eager: RuntimeError, since the checkpoint's own backward
                                        could add to gradients that were not asked for

In a graph there is no such checkpoint, only what it calls, so the gradients would be given. Where
the way from the results to an input leads through what a checkpoint gave, the frame breaks before
the checkpoint, which eager makes, and refuses. The call is remembered: in the functions that the
frame was about to inline it breaks, too. Not seen: what is called after the function.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch.utils.checkpoint import create_selective_checkpoint_contexts, noop_context_fn

from braze.capture.frames.control_signals import BreakRequested
from braze.compat.torch.autograd_engine import history_nodes
from braze.ir.graphs.graph import values_in
from braze.ir.graphs.random_ops import draws
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def note_checkpoint(interpreter: Interpreter, made: object) -> None:
    """Remember what a reentrant checkpoint gave: autograd's node, the step before which the frame
    can be left, and the checkpoint's call."""
    place = _call(interpreter)
    for result in _fakes(made):
        if result.grad_fn is not None:
            interpreter.checkpoints.append((result.grad_fn, interpreter.outer_step, place))


def check_options(options: Mapping[str, object]) -> None:
    """Break where a checkpoint's options ask for more than that less is kept for the backward."""
    contexts = options.get("context_fn", noop_context_fn)
    if contexts is not noop_context_fn and not _only_selects(contexts):
        raise BreakRequested("unsupported-tensor", "torch.utils.checkpoint(context_fn=)")
    if options.get("debug", False) is not False:
        raise BreakRequested("unsupported-tensor", "torch.utils.checkpoint(debug=True)")
    if options.get("determinism_check", "default") not in ("default", "none"):
        raise BreakRequested("unsupported-tensor", "torch.utils.checkpoint(determinism_check=)")


def call_checkpointed(
    interpreter: Interpreter,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    options: Mapping[str, object],
) -> object:
    """The function of a checkpoint, whose results carry gradients: eager calls it once more in the
    backward. What it writes then is written twice, and numbers that it draws are others unless the
    checkpoint keeps the state of the generators: the frame breaks before such a call."""
    place, step = _call(interpreter), interpreter.outer_step
    if place in interpreter.request.refusing:
        raise _refused("the second call of a function")
    before, calls = _writes(interpreter), interpreter.tracer.recorder.calls
    start = len(calls)
    made = interpreter.call(*args, **kwargs)
    # Nobody says where its tensors go: into a container, an attribute, a closure.
    if not _saves(interpreter, start):
        return made
    drawn = any(draws(*call[:3]) for call in calls[start:])
    loses_state = drawn and not options.get("preserve_rng_state", True)
    if loses_state or _writes(interpreter) != before:
        interpreter.request.refusing.add(place)
        signal = _refused("the second call of a function that writes or draws")
        signal.step = step
        raise signal
    return made


def leave_refusing(interpreter: Interpreter) -> None:
    """Break before a checkpoint that was found to refuse gradients."""
    if _call(interpreter) in interpreter.request.refusing:
        raise _refused("gradients of chosen inputs")


def check_number_of_result(interpreter: Interpreter, tensor: Any) -> None:
    """Break before a reentrant checkpoint one of whose results is asked for its number: eager's
    has one node for all of them."""
    for node, step, place in interpreter.checkpoints:
        if node is tensor.grad_fn:
            interpreter.request.refusing.add(place)
            signal = _refused("output_nr of a result")
            signal.step = step
            raise signal


def check_checkpoints(
    interpreter: Interpreter, results: Sequence[object], inputs: Sequence[object], what: str
) -> None:
    """Break where gradients of these inputs lead through a reentrant checkpoint. what: the call, as
    a user writes it."""
    if not interpreter.checkpoints:
        return
    ends = [tensor for tensor in inputs if type(tensor) is TracedTensor and tensor.requires_grad]
    nodes = history_nodes(_nodes(results))
    below = set(map(id, nodes))  # which are nodes' own as long as the list holds these
    for node, step, place in interpreter.checkpoints:
        if id(node) in below and _leads_to(node, ends):
            interpreter.request.refusing.add(place)
            signal = _refused(what)
            signal.step = step
            raise signal


# --- private ---------------------------------------------------------------------------------


def _fakes(made: Any) -> list[Any]:
    results = made if type(made) in (tuple, list) else (made,)
    return [result for result in results if type(result) is TracedTensor]


def _saves(interpreter: Interpreter, start: int) -> bool:
    """Whether a call that was recorded from this number on has gradients."""
    tracer = interpreter.tracer
    recorder, inputs = tracer.recorder, [fake for fake, _ in tracer.inputs]
    leaves = [
        leaf for leaf in interpreter.guard_context.new_leaves.values() if type(leaf) is TracedTensor
    ]
    tracked = {tracer.value_of(leaf) for leaf in (*inputs, *leaves) if leaf.requires_grad}
    pairs = zip(inputs, recorder.input_values)  # an input may have been written to since
    tracked |= {value for fake, value in pairs if fake.requires_grad}
    for number, call in enumerate(recorder.calls):
        _, args, kwargs, outputs, _, grad_enabled = call
        if grad_enabled and not tracked.isdisjoint(values_in((tuple(args), kwargs))):
            if number >= start:
                return True
            tracked.update(value for value in outputs if value is not None)
    return False


def _writes(interpreter: Interpreter) -> tuple[object, ...]:
    """What has been written so far, of Python state and of tensors from outside."""
    places = [fake.place for fake, _ in interpreter.tracer.inputs]
    return interpreter.marks(), sum([(place.base or place).version for place in places])


def _only_selects(contexts: object) -> bool:
    """Whether a `context_fn` only chooses what is kept: selective checkpoint."""
    if not isinstance(contexts, functools.partial):
        return False
    return contexts.func is create_selective_checkpoint_contexts


def _call(interpreter: Interpreter) -> tuple[Any, int]:
    """The code that calls the checkpoint, and where in it."""
    frame = interpreter.frames[-1]
    return frame.code, frame.index


def _refused(what: str) -> BreakRequested:
    problem = f"{what} through a reentrant torch.utils.checkpoint"
    return BreakRequested("unsupported-tensor", problem)


def _nodes(tensors: Sequence[object]) -> list[object]:
    found = [tensor.grad_fn for tensor in tensors if type(tensor) is TracedTensor]
    return [node for node in found if node is not None]


def _leads_to(node: Any, ends: list[TracedTensor]) -> bool:
    """Whether a gradient passes a node on its way to one of these tensors."""
    above = history_nodes([following for following, _ in node.next_functions if following])
    makers = {id(maker) for maker in _nodes(ends)}
    leaves = {id(end) for end in ends if end.is_leaf}
    return any(id(n) in makers or id(getattr(n, "variable", None)) in leaves for n in above)
