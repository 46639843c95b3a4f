"""Results that are views of a detached tensor, which autograd takes for their base.

    v = x.detach(); w = v[0]       graph: return (%0 as v,)
    return v, w                    exit:  w = rebuilt_view(v, True, (select, 0, 0))

What is later written to `w` with gradients gives `v` a history. Made by the graph, each from `x`,
both would be detached tensors of their own.
Left to the graph: views whose sizes are symbols, under transforms, and where gradients are off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.capture.exit.lazy_views import known_step, rebuilt_view
from braze.compat.torch.autograd_engine import is_untracked_view
from braze.ir.captured.frame import FromConstant, NewCall
from braze.tracing.fake_tensor import Place, TracedTensor, is_detached
from braze.tracing.symbolic.speculative_copies import CopySeen

if TYPE_CHECKING:
    from braze.capture.exit.reconstruction import Reconstructor
    from braze.capture.interpreter import Interpreter


def detached_view_recipe(
    interpreter: Interpreter, value: Any, writer: Reconstructor
) -> NewCall | None:
    """The recipe of a fake tensor that is a view of a detached one; None of any other."""
    if type(value) is not TracedTensor or not is_detached(value.place) or not value._is_view():
        return None
    if interpreter.transforms or not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        return None
    base: Any = value._base
    steps = _steps(value.place, base.place) if type(base) is TracedTensor else None
    if steps is None:
        return None
    tracks = FromConstant(not is_untracked_view(value))
    return NewCall(rebuilt_view, (writer.recipe(base), tracks, *map(FromConstant, steps)))


# --- private ---------------------------------------------------------------------------------


def _steps(place: Place, base: Place) -> list[tuple[object, ...]] | None:
    """How the view is made of its base, first step first; None where that cannot be said again."""
    found: list[tuple[object, ...]] = []
    walk = place
    while walk is not base:
        if walk.parent is None or walk.step is None:
            return None
        try:
            found.append(known_step(walk.step, walk.parent))
        except CopySeen:
            return None
        walk = walk.parent
    return found[::-1]
