"""Old gradients that a training step drops first: `optimizer.zero_grad()` at its start.

In eager they are gone when the forward begins. A compiled frame writes to what existed before it
only when its graph is done, so they would be held beside all that the step computes. They go before
the graph runs instead, where the program dropped them before its first operator: no fault of the
graph's can come before the drop then, and a frame that is run again by eager kernels drops them
again. Refused: gradients that the frame reads, returns or keeps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch

from braze.ir.captured.frame import FromSource, Recipe
from braze.ir.captured.source import AttributeSource, Source

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_FIRST = (0, 0)  # no call has been recorded, and no write


def note_dropped(interpreter: Interpreter, tensor: object, value: object) -> None:
    """`tensor.grad = value` on a leaf from outside."""
    if value is None and interpreter.tracer.recorder.progress == _FIRST:
        interpreter.dropped_gradients[id(tensor)] = tensor


def dropped_leaves(
    interpreter: Interpreter, kept: Sequence[int], recipes: Iterable[Recipe]
) -> tuple[int, ...]:
    """Which of the graph's inputs are leaves whose gradients go before it runs. kept: its inputs,
    as numbers of the tracer's; recipes: all that are built when the frame ends."""
    dropped = interpreter.dropped_gradients
    inputs = [interpreter.tracer.inputs[index] for index in kept]
    leaves = {
        AttributeSource(interpreter.guard_context.known[id(fake)][1], "grad"): index
        for index, (fake, real) in enumerate(inputs)
        if id(fake) in dropped and real is not None and _may_go(real)
    }
    read = {id(real) for _, real in inputs}
    used = {base for r in recipes if type(r) is FromSource for base in _chain(r.source)}
    return tuple(
        index
        for source, index in leaves.items()
        if source not in used and id(inputs[index][1].grad) not in read
    )


# --- private ---------------------------------------------------------------------------------


def _may_go(leaf: torch.Tensor) -> bool:
    return leaf.is_leaf and type(leaf.grad) is torch.Tensor and not leaf.grad.requires_grad


def _chain(source: Source | None) -> Iterable[Source]:
    while source is not None:
        yield source
        source = getattr(source, "base", None)
