"""Handles calls whose schema hides effects: collectives in flight, and writes it does not declare.

    %2 = _c10d_functional.all_reduce(%1, "sum", "0")     begins; %1 is read until the wait
    %3 = _c10d_functional.wait_tensor(%2)                gives its operand, whose contents are there

The schema calls the second one's result a new tensor. It is the operand itself, so the wait is
recorded as a write to that.

Left to eager: in-place and `out=` forms, groups that are given as objects, and a wait for what was
begun outside of the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from braze.ir.graphs.op_effects import is_wait
from braze.tracing.errors import DataDependent, Untraceable
from braze.tracing.op_schema import OpFacts

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer


def record_collective(
    tracer: Tracer, facts: OpFacts, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """Record the beginning of a functional collective, or its wait."""
    op = facts.op
    if op._schema.is_mutable:
        raise Untraceable(f"{op} writes to a tensor while the call is over")
    if any(isinstance(value, torch.ScriptObject) for value in (*args, *kwargs.values())):
        raise Untraceable(f"{op} of a process group, which is no part of a graph")
    if not is_wait(op):
        return tracer.call(op, args, kwargs)
    tensor = tracer.fake_of(args[0])
    place = tensor.place
    if (place.base or place).input_index >= 0:
        raise Untraceable(f"{op} of what was begun outside of the graph")
    tracer.recorder.write(place, tracer.recorder.emit(op, tuple(tracer.bind(args)), kwargs))
    return tensor


def refuse_hidden(
    tracer: Tracer, facts: OpFacts, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Raise for an operator with effects of which its schema says nothing."""
    raise Untraceable(f"{facts.op} does more than its schema says")


def refuse_metadata(
    tracer: Tracer, facts: OpFacts, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Raise for a change of what a tensor is."""
    raise Untraceable(f"{facts.op} changes the sizes or the storage of an existing tensor")


def refuse_data(
    tracer: Tracer, facts: OpFacts, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """Raise for an operator that needs values."""
    raise DataDependent(str(facts.op), "its result depends on the values of a tensor")
