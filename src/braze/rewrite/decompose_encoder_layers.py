"""Decomposes the operators of PyTorch's fast path for transformers.

    %9 = _transformer_encoder_layer_fwd(%0, 256, 4, %1, ...)
->
    %10 = view(%0, [16, 256])
    %11 = t(%1)
    %12 = addmm(%2, %10, %11)               # queries, keys and values
    ... attention, addmm, add, native_layer_norm, addmm, relu, addmm, add ...
    %9, %40, %41 = native_layer_norm(%39, [256], ...)

`nn.TransformerEncoderLayer` and `nn.MultiheadAttention` call them in eval mode without gradients,
each an operator that nothing fuses with. What they become, `encoder_layer.py` says: products take
packed weights, and sums, norms and activations fuse with them. Layers of one kind are traced once.

Left to ATen: other devices than the CPU, nested tensors, attention to another tensor, empty ones,
dtypes that differ, masks of another shape, and every shape that ATen raises for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.aten import aten
from braze.compat.torch.autograd_engine import plain_autograd
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Value, operands, replace_in, replace_operands
from braze.ir.types import TensorType, known_sizes
from braze.rewrite.editing import at_hand, fresh_numbers, type_of
from braze.rewrite.encoder_layer import (
    FEW_KEYS,
    PADDING_MASK,
    SCORES_MASK,
    SOURCE_MASK,
    Given,
    encoder_layer,
    multi_head_attention,
)
from braze.shapes.binding import Sizes
from braze.shapes.expr import as_expr
from braze.tracing import DataDependent, Tracer, UnknownTensor, Untraceable
from braze.tracing.fake_tensor import apart
from braze.tracing.graph_recorder import node_of
from braze.tracing.symbolic.size_rewriter import Expressions, retraced

_LOG = logging.getLogger("braze.fusion")


def decompose_encoder_layers(graph: Graph) -> Graph:
    """The graph with layers of transformers as operators that fuse."""
    if not any(node.op in _OPERATORS for node in graph.nodes):
        return graph
    numbers = fresh_numbers(graph)
    traces: dict[str, _Decomposition | str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        made = _decomposed(node, graph.sizes, traces) if node.op in _OPERATORS else None
        if isinstance(made, str):
            _LOG.info("%s at %s: left to ATen: %s", node.op, node.origin, made)
        nodes += _renamed(node, made, numbers) if isinstance(made, _Decomposition) else [node]
    return replace(graph, nodes=tuple(nodes))


# --- private -------------------------------------------------------------------------------------

_Results: TypeAlias = tuple[torch.Tensor | None, ...]


def _attention_of(given: Given, is_short: bool) -> _Results:
    return multi_head_attention(given["query"], given, is_short)


def _layer_of(given: Given, is_short: bool) -> _Results:
    return (encoder_layer(given, is_short),)


# What stands for each, by the arguments' names.
_OPERATORS: Mapping[torch._ops.OpOverload, Callable[[Given, bool], _Results]] = {
    aten._native_multi_head_attention.default: _attention_of,
    aten._transformer_encoder_layer_fwd.default: _layer_of,
}

# Weights and their shapes: w is the width, f that of the layer between.
_WEIGHTS: Mapping[str, str] = {
    "qkv_weight": "3w w",
    "qkv_bias": "3w",
    "proj_weight": "w w",
    "proj_bias": "w",
    "norm_weight_1": "w",
    "norm_bias_1": "w",
    "norm_weight_2": "w",
    "norm_bias_2": "w",
    "ffn_weight_1": "f w",
    "ffn_bias_1": "f",
    "ffn_weight_2": "w f",
    "ffn_bias_2": "w",
}


@final
@frozen(eq=False)
class _Decomposition:
    """What an operator becomes. inputs: stand for the node's operands, in order; results: for its
    outputs."""

    inputs: tuple[Value, ...]
    nodes: tuple[Node, ...]
    results: tuple[Value | None, ...]


def _decomposed(
    node: Node, sizes: Sizes, traces: dict[str, _Decomposition | str]
) -> _Decomposition | str:
    """What stands for a node, or why nothing does. traces: those of the graph so far."""
    given = _arguments(node)
    reason = _refusal(given)
    if reason is not None:
        return reason
    read = list(dict.fromkeys(operands(node)))
    places = {value: Value(place, value.type) for place, value in enumerate(read)}
    kinds = [str(value.type) for value in (*read, *node.outputs) if value is not None]
    named = {name: str(replace_in(argument, places)) for name, argument in given.items()}
    key = str((node.op, kinds, named, [value is None for value in node.outputs]))
    if key not in traces:
        traces[key] = _traced(node, given, read, sizes)
    return traces[key]


def _traced(node: Node, given: Given, read: Sequence[Value], sizes: Sizes) -> _Decomposition | str:
    live, facts = retraced(Graph(tuple(read), (), (), (), (), sizes))
    tracer = Tracer(replayable=False)
    kinds = [type_of(value) for value in live.inputs]
    is_symbolic = any(known_sizes((*kind.shape, *kind.stride)) is None for kind in kinds)
    if is_symbolic:
        tracer.facts = facts
    made = [tracer.add_input_of_type(replace(kind, requires_grad=False)) for kind in kinds]
    inputs = tuple(tracer.recorder.input_values)
    fakes = dict(zip(read, made, strict=True))
    called: dict[str, Any] = {
        name: fakes[argument] if type(argument) is Value else argument
        for name, argument in given.items()
    }
    is_short = at_hand(type_of(read[0]).shape[1]) < FEW_KEYS
    try:
        with plain_autograd(apart), torch.no_grad(), tracer:
            found = _OPERATORS[node.op](called, is_short)
    except (DataDependent, UnknownTensor, Untraceable, NotImplementedError, RuntimeError) as error:
        return f"it cannot be traced: {error}"
    results = tuple([None if one is None else tracer.value_of(one) for one in found])
    trace = _Decomposition(inputs, tuple(map(node_of, tracer.recorder.calls)), results)
    if is_symbolic:
        if facts.learned():
            return "it asks for sizes that are not known"
        trace = _with_expressions(trace, Expressions(facts))
    return trace if _fits(trace, node) else "its result would be laid out otherwise"


def _with_expressions(trace: _Decomposition, final_sizes: Expressions) -> _Decomposition:
    """The trace with expressions for its symbolic sizes."""
    value = final_sizes.value
    return _Decomposition(
        tuple(map(value, trace.inputs)),
        tuple(map(final_sizes.node, trace.nodes)),
        tuple([None if one is None else value(one) for one in trace.results]),
    )


def _fits(trace: _Decomposition, node: Node) -> bool:
    """Whether results have the types that the node's have."""
    pairs = list(zip(trace.results, node.outputs, strict=True))
    return all(
        wanted is None or (ours is not None and str(ours.type) == str(wanted.type))
        for ours, wanted in pairs
    )


def _renamed(node: Node, trace: _Decomposition, numbers: Iterator[int]) -> list[Node]:
    """The trace's nodes in the numbering of the graph, in the place of a node."""
    read = dict.fromkeys(operands(node))
    new: dict[Value, Value] = dict(zip(trace.inputs, read, strict=True))
    for ours, wanted in zip(trace.results, node.outputs, strict=True):
        if ours is not None and wanted is not None:
            new[ours] = wanted
    made = []
    for one in trace.nodes:
        for value in one.outputs:
            if value is not None and value not in new:
                new[value] = Value(next(numbers), value.type)
        outputs = tuple([None if value is None else new[value] for value in one.outputs])
        one = replace(replace_operands(one, new), outputs=outputs, origin=node.origin)
        made.append(replace(one, grad_enabled=node.grad_enabled))
    return made


# --- what is left to ATen ------------------------------------------------------------------------


def _arguments(node: Node) -> dict[str, object]:
    """A call's arguments by name, defaults included."""
    schema = node.op._schema.arguments
    given = {argument.name: argument.default_value for argument in schema}
    given.update({argument.name: value for argument, value in zip(schema, node.args, strict=False)})
    given.update(node.kwargs)
    return given


def _refusal(given: Given) -> str | None:
    """Why a call is left to ATen, if it is."""
    x = given["src"] if "src" in given else given["query"]
    if "query" in given and not (given["key"] is x and given["value"] is x):
        return "it attends to another tensor"
    kind, width = x.type, given["embed_dim"]
    heads = given["num_head"] if "num_head" in given else given["num_heads"]
    values = [value for value in given.values() if type(value) is Value and value is not x]
    if not all(type(value.type) is TensorType for value in (x, *values)):
        return "not all of its operands are plain tensors"
    if any(value.type.device.type != "cpu" for value in (x, *values)):
        return "it is not on the CPU"
    if len(kind.shape) != 3 or kind.shape[2] != width or 0 in kind.shape:
        return "its operand is empty, or has another shape"
    if type(heads) is not int or heads < 1 or width % heads or not width:
        return "its width is no multiple of its heads"
    return _refusal_of_weights(given, kind) or _refusal_of_mask(given, kind, heads)


def _refusal_of_weights(given: Given, kind: TensorType) -> str | None:
    width = given["embed_dim"]
    sizes: dict[str, Any] = {"w": width, "3w": 3 * width}
    for name, text in _WEIGHTS.items():
        if name not in given:
            continue
        weight: TensorType = given[name].type
        names = text.split()
        if weight.dtype is not kind.dtype or len(weight.shape) != len(names):
            return f"{name} has another dtype or shape"
        for size, wanted in zip(weight.shape, names, strict=True):
            if type(size) is not int or sizes.setdefault(wanted, size) != size or not size:
                return f"{name} has another shape"
    return None


def _refusal_of_mask(given: Given, kind: TensorType, heads: int) -> str | None:
    if given["mask"] is None:
        return None
    batch, length, _ = kind.shape
    shapes: dict[Any, tuple[Any, ...]] = {
        SOURCE_MASK: (length, length),
        PADDING_MASK: (batch, length),
        SCORES_MASK: (batch, heads, length, length),
    }
    wanted = shapes.get(given["mask_type"], ())
    found = given["mask"].type.shape
    same = [as_expr(one) == as_expr(other) for one, other in zip(found, wanted, strict=False)]
    return None if len(found) == len(wanted) and all(same) else "its mask has another shape"
