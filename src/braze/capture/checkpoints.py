"""Reentrant checkpoints of a frame, and the backwards that they refuse.

    y = checkpoint(layer, x, use_reentrant=True)
    torch.autograd.grad(y.sum(), x)     eager: RuntimeError, since the checkpoint's own backward
                                        could add to gradients that were not asked for

In a graph there is no such checkpoint, only what it calls, so the gradients would be given. Where
the way from the results to an input leads through what a checkpoint gave, the frame breaks before
the checkpoint, which eager makes, and refuses. The call is remembered: in the functions that the
frame was about to inline it breaks, too. Not seen: what is called after the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from braze.capture.signals import BreakRequested
from braze.compat.backward import history_nodes
from braze.standins.standin import Standin


def note_checkpoint(interpreter: Any, made: Any) -> None:
    """Remember what a reentrant checkpoint gave: autograd's node, the step before which the frame
    can be left, and the checkpoint's call."""
    place = _call(interpreter)
    for result in made if type(made) in (tuple, list) else (made,):
        if type(result) is Standin and result.grad_fn is not None:
            interpreter.checkpoints.append((result.grad_fn, interpreter.outer_step, place))


def leave_refusing(interpreter: Any) -> None:
    """Break before a checkpoint that was found to refuse gradients."""
    if _call(interpreter) in interpreter.request.refusing:
        raise _refused("gradients of chosen inputs")


def check_checkpoints(
    interpreter: Any, results: Sequence[Any], inputs: Sequence[Any], what: str
) -> None:
    """Break where gradients of these inputs lead through a reentrant checkpoint. what: the call, as
    a user writes it."""
    if not interpreter.checkpoints:
        return
    ends = [tensor for tensor in inputs if type(tensor) is Standin and tensor.requires_grad]
    below = {id(node) for node in history_nodes(_nodes(results))}
    for node, step, place in interpreter.checkpoints:
        if id(node) in below and _leads_to(node, ends):
            interpreter.request.refusing.add(place)
            signal = _refused(what)
            signal.step = step
            raise signal


# --- private ---------------------------------------------------------------------------------


def _call(interpreter: Any) -> tuple[Any, int]:
    """The code that calls the checkpoint, and where in it."""
    frame = interpreter.frames[-1]
    return frame.code, frame.index


def _refused(what: str) -> BreakRequested:
    problem = f"{what} through a reentrant torch.utils.checkpoint"
    return BreakRequested("unsupported-tensor", problem)


def _nodes(tensors: Sequence[Any]) -> list[Any]:
    found = [tensor.grad_fn for tensor in tensors if type(tensor) is Standin]
    return [node for node in found if node is not None]


def _leads_to(node: Any, ends: Sequence[Any]) -> bool:
    """Whether a gradient passes a node on its way to one of these tensors."""
    above = history_nodes([following for following, _ in node.next_functions if following])
    makers = {id(maker) for maker in _nodes(ends)}
    leaves = {id(end) for end in ends if end.is_leaf}
    return any(id(n) in makers or id(getattr(n, "variable", None)) in leaves for n in above)
