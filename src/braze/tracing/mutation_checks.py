"""Rejects writes that a graph could not repeat as eager does them."""

from __future__ import annotations

import torch

from braze.tracing.errors import Untraceable
from braze.tracing.fake_tensor import Place, is_detached
from braze.tracing.shape_rules.strides import overlaps_itself


def is_view_outside(real: torch.Tensor | None) -> bool:
    """Whether the tensor of an input is a view, which `asks_view` guards."""
    return real is not None and real._is_view()


def check_write(place: Place, differentiable: bool) -> None:
    """Raise Untraceable for a write to a place that must happen eagerly. differentiable: whether
    gradients flow through what is written."""
    base = place.base or place
    if differentiable and base.refuses_gradients:
        raise Untraceable("gradients are written to a view that autograd refuses to change")
    base.asks_view = base.asks_view or differentiable or base.type.requires_grad
    for memory in (place.type, base.type):
        if overlaps_itself(memory.shape, memory.stride):  # type: ignore[arg-type]
            raise Untraceable("a write to elements that share memory, as after expand()")
    if differentiable and is_detached(place):
        raise Untraceable("a detached tensor gets a history that its memory has not elsewhere")
