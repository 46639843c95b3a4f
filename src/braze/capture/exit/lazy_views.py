"""Results that are lazily conjugated or negated: views, with a bit, of what the graph gives.

    return (z * 2).conj()[0]       graph: %1 = mul(%0, 2); return (%1,)
                                   exit:  rebuilt_view(result 0, True, (_conj,), (select, 0, 0))

In the graph such a tensor is numbers of its own (`_lazy_bit` of the tracer). What leaves the frame
shares memory with what it was made of, as eager's does, since no write to either came between.

Left to a break: inputs that had the bit already, modes in which views are of another kind (function
transforms, inference mode), and views whose sizes are symbols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.capture.state.guard_context import CONSTANTS
from braze.compat.torch.aten import aten
from braze.ir.captured.frame import FromConstant, NewCall
from braze.ir.captured.source import PlainMemorySource
from braze.tracing.fake_tensor import Place, Step, TracedTensor, new_fake, with_history
from braze.tracing.symbolic.speculative_copies import CopySeen, shares_lazily

if TYPE_CHECKING:
    from braze.capture.exit.reconstruction import Reconstructor
    from braze.capture.interpreter import Interpreter


def lazy_recipe(interpreter: Interpreter, value: Any, writer: Reconstructor) -> NewCall | None:
    """The recipe of a fake tensor that eager has with its conjugate or negative bit set; None of
    any other. Raises CopySeen where there is none: the frame breaks where the tensor is made."""
    if not interpreter.tracer.has_lazy or not shares_lazily(value):
        return None
    steps, parent = _steps(value.place)
    inputs = [fake for fake, _ in interpreter.tracer.inputs if fake.place is parent]
    is_given = any(
        type(interpreter.guard_context.source_of(fake)) is PlainMemorySource for fake in inputs
    )
    if is_given or interpreter.transforms or torch.is_inference_mode_enabled():
        raise CopySeen
    base = writer.recipe(inputs[0] if inputs else _result(parent, value.requires_grad))
    return NewCall(
        rebuilt_view, (base, FromConstant(value.requires_grad), *map(FromConstant, steps))
    )


def rebuilt_view(base: torch.Tensor, tracks: bool, *steps: tuple[Any, ...]) -> torch.Tensor:
    """The view that operators with these further arguments make of a tensor. tracks: with
    gradients enabled."""
    with torch.set_grad_enabled(tracks):
        for op, *rest in steps:
            base = op(base, *rest)
        return base


def known_step(step: Step, parent: Place) -> tuple[object, ...]:
    """The operator of a view and its further arguments. Raises CopySeen where these are no
    constants, or views by it are refused."""
    if step.op is aten.slice.Tensor and len(step.args) > 2:
        dim, start, end, *rest = step.args
        if type(dim) is int and end is parent.type.shape[dim]:  # up to its end at every size
            step = Step(step.op, (dim, start, None, *rest), step.kwargs)
    plain = all(
        type(argument) in CONSTANTS
        or (isinstance(argument, (tuple, list)) and all(type(n) is int for n in argument))
        for argument in step.args
    )
    if not plain or step.kwargs or step.op in _OF_NUMBERS:
        raise CopySeen
    return (step.op, *step.args)


# Views of which a tensor with its bits is refused, or of another kind.
_OF_NUMBERS = (aten.view_as_real.default, aten.as_strided.default)


# --- private ---------------------------------------------------------------------------------


def _result(place: Place, has_history: bool) -> TracedTensor:
    made = new_fake(place)
    if not has_history:
        return made
    made.requires_grad_()
    with torch.enable_grad():
        return with_history(made)


def _steps(place: Place) -> tuple[list[tuple[object, ...]], Place]:
    """How a view is made, first step first, and from which base without the bits."""
    found: list[tuple[Any, ...]] = []
    while True:
        while place.parent is not None and place.step is not None:
            found.append(known_step(place.step, place.parent))
            place = place.parent
        if place.lazy_step is None:
            return found[::-1], place
        op, place = place.lazy_step
        found.append((op,))
