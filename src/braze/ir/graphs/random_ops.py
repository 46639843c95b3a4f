"""Which operators draw random numbers, and where."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence

import torch

from braze.ir.graphs.graph import Graph, operands
from braze.ir.types import TensorType

# Arguments that switch the drawing off, and the value that does.
_SWITCHES = {"dropout_p": 0.0, "dropout": 0.0, "train": False, "training": False}


@functools.cache
def is_random(op: torch._ops.OpOverload) -> bool:
    """Whether a call advances a generator, so that it is neither merged, moved nor dropped."""
    return torch.Tag.nondeterministic_seeded in op.tags


def draws(
    op: torch._ops.OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object] | Iterable[tuple[str, object]],
) -> bool:
    """Whether this call advances a generator: attention without dropout does not, nor does a layer
    that does not train. A backward drops what its forward dropped, by the numbers that this saved.
    """
    if not is_random(op):
        return False
    places = _switches(op)
    if places is None:
        return False
    named = dict(kwargs)
    for place, name, default, off in places:
        value = args[place] if place < len(args) else named.get(name, default)
        # Not a number that the graph computes or is given.
        if type(value) in (bool, int, float) and value == off:
            return False
    return True


@functools.cache
def _switches(op: torch._ops.OpOverload) -> tuple[tuple[int, str, object, object], ...] | None:
    """Place, name, default and value of the arguments that switch it off; None for a backward."""
    if op._schema.name.endswith("_backward"):
        return None
    return tuple(
        [
            (place, a.name, a.default_value, _SWITCHES[a.name])
            for place, a in enumerate(op._schema.arguments)
            if a.name in _SWITCHES
        ]
    )


def drawing_devices(graph: Graph) -> tuple[torch.device, ...]:
    """The devices whose generators running the graph advances."""
    drawing = [node for node in graph.nodes if draws(node.op, node.args, node.kwargs)]
    values = [value for node in drawing for value in (*node.outputs, *operands(node))]
    kinds = [value.type for value in values if value is not None]
    return tuple(dict.fromkeys([kind.device for kind in kinds if isinstance(kind, TensorType)]))
