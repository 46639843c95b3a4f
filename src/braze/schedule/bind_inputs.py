"""Gives a schedule tensors for its last inputs: what is frozen is passed in no call.

    inputs x, w; kernel k1: y = x @ w    ->    inputs x; constant w; kernel k1: y = x @ w

A constant is a copy, so that later writes to a weight are not seen, not even in part; one that
kernels have in packed form alone is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from braze.compat.torch.registered_ops import convolution, pack_weights
from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.scalars import loads
from braze.ir.kernels.schedule import ExternStep, Schedule, Step, scalar_of, statements_of
from braze.schedule.memory.allocate import memory_of


def bind_inputs(plan: Schedule, tensors: Sequence[torch.Tensor]) -> Schedule:
    """The schedule with its last inputs bound to tensors, each of the input's type."""
    if not tensors:
        return plan
    first = len(plan.inputs) - len(tensors)
    bound = dict(zip(plan.inputs[first:], tensors, strict=True))
    read = {buffer for step in plan.steps for buffer in _read(step)}
    read |= {view.buffer for view in plan.outputs} | {view.buffer for _, view in plan.mutations}
    constants = [(b, _copied(t) if b in read else t) for b, t in bound.items()]
    return replace(
        plan,
        inputs=plan.inputs[:first],
        constants=(*plan.constants, *constants),
        last_use=tuple([(b, number) for b, number in plan.last_use if b not in bound]),
    )


# --- private ---------------------------------------------------------------------------------


def _read(step: Step) -> Iterator[Buffer]:
    """What a step reads of its memory as it is."""
    if isinstance(step, ExternStep):
        if step.call.op is convolution:  # the image, and what is added to it
            yield from [view.buffer for view in (step.call.args[0], step.call.args[5]) if view]
        elif step.call.op is not pack_weights:
            yield from memory_of(step)
        return
    product = step.product
    if product is None or product.packed is None:
        yield from step.memory
        return
    yield from [buffer for buffer in step.memory if buffer is not product.second.buffer]
    yield product.first.buffer
    for statement in statements_of(step):
        yield from [load.buffer for load in loads(scalar_of(statement))]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)
