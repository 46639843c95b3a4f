"""Checks a joint graph and the pair that it was split into."""

from __future__ import annotations

from braze.ir.graphs.joint_graph import ForwardBackward, JointGraph, SavedInput, joint_as_graph
from braze.ir.graphs.verify_graph import InvalidGraph, verify_graph
from braze.ir.types import TensorType


def verify_pair(joint: JointGraph, pair: ForwardBackward) -> None:
    """Raise InvalidGraph unless the graphs are well formed; every gradient has its input's shape
    and dtype; and what the backward takes is what the forward saves."""
    verify_graph(joint_as_graph(joint))
    for value, gradient in zip(joint.forward.inputs, joint.gradients, strict=True):
        if gradient is not None and _facts(value.type) != _facts(gradient.type):
            raise InvalidGraph(f"gradient {gradient}: {gradient.type} of {value}: {value.type}")
    verify_graph(pair.forward)
    backward = pair.backward
    verify_graph(backward.graph)
    if len(pair.saved) + len(backward.tangents) != len(backward.graph.inputs):
        raise InvalidGraph("the backward takes other values than are saved")
    for saved, wanted in zip(pair.saved, backward.graph.inputs):
        if isinstance(saved, SavedInput):
            given = pair.forward.inputs[saved.index]
        else:
            given = pair.forward.outputs[saved.index].value
        if str(given.type) != str(wanted.type):
            raise InvalidGraph(f"{given}: {given.type} is saved for {wanted}: {wanted.type}")


def _facts(kind: object) -> object:
    return (kind.dtype, kind.shape) if isinstance(kind, TensorType) else kind
