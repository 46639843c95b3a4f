"""Replaces attention that a program writes out by the library's fused kernel.

    %2 = bmm(%0, %1)
    %3 = mul(%2, 0.125)           ->   %8 = transpose(%1, -2, -1)
    %4 = _softmax(%3, -1)              %9, ... = _scaled_dot_product_flash_attention(%0, %8, %5)
    %6 = bmm(%4, %5)                   %6 = clone(%9)

so that scores are never in memory. What is attention, `attention_pattern.py` says; which operators
stand for it, and what becomes of rows that attend to nothing, `attention_call.py`. The result keeps
its strides. Where gradients are needed this is done before the backward is traced, which is the
kernel's own then; a second derivative, which kernels have not got, is one of the program as it
was. A graph that holds a backward already (`attention_backward.py`) gets both from the kernel.

Refused: what the pattern and the call refuse; gradients that flow through a mask, or of which
deterministic algorithms are asked for; a backward that gradients flow through; gradients that may
be NaN (`gradients_may_be_nan`); what does not pay (`WORTH`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.compat.torch.aten import aten
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Value, first_result, operands, replace_operands
from braze.ir.types import Size, TensorType
from braze.rewrite.attention_backward import AttentionBackward, find_backward
from braze.rewrite.attention_call import NONE_WANTED, AttentionCall, Masking, call_of, masking
from braze.rewrite.attention_pattern import Attention, Fill, Mask, NearMiss, find_attention
from braze.rewrite.editing import (
    at_hand,
    fresh_numbers,
    readers_of,
    seen_values,
    type_of,
)
from braze.shapes.expr import as_expr, constant_value
from braze.tracing.constant_folding import evaluated

_LOG = logging.getLogger("braze.fusion")


@final
@frozen
class Worth:
    """Where a device's kernels gain. dtypes: that they are quick in; count: of keys, at least so
    many. Of queries by keys, where gradients are computed: trained; masked: under a mask that
    depends on inputs; flowing: which is added."""

    dtypes: frozenset[torch.dtype]
    count: int
    trained: int
    masked: int = 0
    flowing: int = 0


# CPU, measured with one thread, 8 or 12 heads of 64, beside products and our softmax: 0.97 of the
# time at 64 queries and keys, 0.75 at 128, 0.74 at 256, 0.83 at 1,024 (causal 0.59); with gradients
# 1.12 at 64, 0.98 at 128, 0.95 at 256 and without what was saved, 0.86 at 512; by two threads under
# a mask of inputs 1.04 at 256, 1.07 at 512, 0.75 at 768, 0.87 at 1,024; which is added 1.28, 1.28,
# 1.18, 0.92, and 0.92 at 2,048. In bfloat16 1.4, and 2 with gradients. CUDA, an H200, bfloat16:
# 0.69 of the time of products at 128 causal ones, 0.75 at 256, 0.16 to 0.39 at 2,048; with
# gradients 0.93 to 1.09 at 128 to 512, where launches are what takes the time, and from then on
# down to 0.38, in a fifth of the memory or less; under a mask that is added 0.93 at 128, 1.11 at
# 256, 0.85 and 1.00 at 512 in two runs, 0.76 at 1,024, 0.72 at 2,048, in a quarter or less.
WORTH: Mapping[str, Worth] = {
    "cpu": Worth(
        frozenset({torch.float32}),
        count=128,
        trained=256 * 256,
        masked=768 * 768,
        flowing=1024 * 1024,
    ),
    "cuda": Worth(
        frozenset({torch.float16, torch.bfloat16}),
        count=128,
        trained=256 * 256,
        flowing=512 * 512,
    ),
}


def fuse_attention(graph: Graph, worth: Mapping[str, Worth] = WORTH) -> Graph:
    """The graph with attention as calls of the library, where that pays."""
    found = list(find_attention(graph))
    if not found:
        return graph
    writer = _AttentionRewriter(graph, worth)
    for one in found:
        reason = one.reason if isinstance(one, NearMiss) else writer.replace(one)
        place = one.softmax.origin
        if reason is None:
            _LOG.info("attention at %s: a call of the library", place)
        else:
            _LOG.info("attention at %s: not fused: %s", place, reason)
    return writer.graph()


def gradients_may_be_nan(nodes: Sequence[Node], count: Size) -> bool:
    """Whether a call under a mask is one of cuDNN's that gives rows with low scores NaN for the
    query's gradient: of 64 keys beyond a multiple of 128, which count may be (PyTorch's issue
    196678, since 2.11)."""
    keys = constant_value(count)
    is_cudnns = any(node.op._schema.name == _CUDNN for node in nodes)
    return is_cudnns and (keys is None or keys % 128 == 64)


# --- private -------------------------------------------------------------------------------------

# Elements of a mask that is evaluated when a graph is compiled.
_MOST_KNOWN = 1 << 26
# What a call of the library is named.
_KERNEL = "_scaled_dot_product_"
_MATH = "_scaled_dot_product_attention_math"
_CUDNN = "aten::_scaled_dot_product_cudnn_attention"


@final
class _AttentionRewriter:
    """Replaces attention in one graph. calls: the last node of each -> what stands for all."""

    def __init__(self, graph: Graph, worth: Mapping[str, Worth]) -> None:
        self._graph, self._worth = graph, worth
        self._numbers = fresh_numbers(graph)
        self._makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}
        self._data = {constant.value: constant.tensor for constant in graph.constants}
        self._carrying = _carrying(graph)
        self._readers = readers_of(graph)
        self._seen = seen_values(graph)
        self._calls: dict[Node, list[Node]] = {}
        self._gone: set[Node] = set()
        self._moved: dict[Node, Node] = {}
        self._replacements: dict[Value, Value] = {}

    def graph(self) -> Graph:
        """The graph with what was replaced."""
        if not self._calls:
            return self._graph
        nodes: list[Node] = []
        for node in self._graph.nodes:
            nodes += self._calls.get(node, ())
            if node not in self._gone:
                nodes.append(replace_operands(self._moved.get(node, node), self._replacements))
        return replace(self._graph, nodes=tuple(nodes))

    def replace(self, attention: Attention) -> str | None:
        """Put a call in the place of attention, or say why not."""
        if not self._gone.isdisjoint(attention.nodes):
            return "one of its products is that of another one"
        operands = (attention.query, attention.keys, attention.values)
        flows = attention.softmax.grad_enabled and any(v in self._carrying for v in operands)
        if attention.is_shared and flows:
            return "its probabilities or scores are read elsewhere"
        backward = find_backward(self._graph, attention) if attention.is_shared else None
        if isinstance(backward, str):
            return backward
        trains = flows or backward is not None
        reason = self._refusal(attention, trains)
        if reason is not None:
            return reason
        found = masking(attention, self._known(attention.masks), trains)
        if isinstance(found, str):
            return found
        if found.has_rows and trains and self._are_too_few(attention, found):
            return "queries and keys are too few for gradients under its mask"
        if found.has_rows and not _is_small(attention, [type_of(m.mask) for m in found.masks]):
            return "its mask is as large as its scores"
        wanted = NONE_WANTED if backward is None else backward.gradients
        sources = self._sources(attention)
        made = call_of(attention, found, sources, self._graph.sizes, trains, wanted)
        if isinstance(made, str):
            return made
        if trains and found.masks and gradients_may_be_nan(made.nodes, attention.shape[-1]):
            return "cuDNN's gradients under a mask of as many keys may be NaN"
        return self._put(made, attention, backward)

    def _put(
        self, made: AttentionCall, attention: Attention, backward: AttentionBackward | None
    ) -> str | None:
        """Put the call there, if a kernel of the library is called and the result is the same."""
        if not any(map(_is_kernel, made.nodes)):
            return "the library has no kernel for it"
        given = [made.result, *made.gradients]
        there = [attention.result, *(backward.gradients if backward else (None,) * 3)]
        pairs = [
            (a, b) for a, b in zip(given, there, strict=True) if a is not None and b is not None
        ]
        for ours, wanted in pairs:
            if str(ours.type) != str(wanted.type):
                return f"its result would be {ours.type}"
        new = {**made.names, **dict(pairs)}
        if made.tangent is not None and backward is not None:
            new[made.tangent] = backward.tangent
        forward = self._renamed(made.nodes, new, attention)
        self._calls.setdefault(attention.nodes[-1], []).extend(forward)
        self._gone.update(attention.nodes)
        if backward is None:
            self._leave_as_computed(attention.result, new[made.computed])
        else:
            behind = self._renamed(made.backward, new, attention)
            self._calls.setdefault(backward.first, []).extend(behind)
            self._gone |= backward.nodes
        return None

    def _leave_as_computed(self, result: Value, computed: Value) -> None:
        """Where the result is only copied in another order, as kernels compute it already (heads
        beside each other), have that read what they give: the first of two copies goes."""
        views = self._readers.get(result, ())
        is_whole = type_of(result).shape == type_of(computed).shape
        if not is_whole or result in self._seen or not all(map(self._is_copied, views)):
            return
        for node in views:
            (view,) = node.outputs
            assert view is not None
            order = _order(node)
            kind = replace(
                type_of(view), stride=tuple([type_of(computed).stride[d] for d in order])
            )
            new = self._replacements[view] = Value(next(self._numbers), kind)
            self._moved[node] = replace(node, args=(computed, *node.args[1:]), outputs=(new,))

    def _is_copied(self, node: Node) -> bool:
        """Whether it swaps dimensions for nothing but copies row by row."""
        if str(node.op) not in ("aten.transpose.int", "aten.permute.default"):
            return False
        view = first_result(node)
        contiguous = (("memory_format", torch.contiguous_format),)
        readers = self._readers.get(view, ())
        return view not in self._seen and all(
            str(one.op) == "aten.clone.default" and one.kwargs == contiguous for one in readers
        )

    def _refusal(self, attention: Attention, trains: bool) -> str | None:
        kind = type_of(attention.query)
        worth = self._worth.get(kind.device.type)
        if worth is None or kind.dtype not in worth.dtypes:
            return f"{kind.dtype} on {kind.device.type} is not worth it"
        *_, length, count = sizes = list(map(at_hand, attention.shape))
        sizes += [at_hand(type_of(v).shape[-1]) for v in (attention.query, attention.values)]
        least = worth.trained if trains else 0
        if 0 in sizes or count < worth.count or length * count < least:
            return f"{length} queries of {count} keys are too few"
        if not trains:
            return None
        if any(mask.mask in self._carrying for mask in attention.masks):
            return "gradients flow through its mask"
        if torch.are_deterministic_algorithms_enabled():
            return "the gradients of kernels are not deterministic"
        return None

    def _are_too_few(self, attention: Attention, found: Masking) -> bool:
        """Whether gradients under a mask that depends on inputs do not pay."""
        worth = self._worth[type_of(attention.query).device.type]
        flows = any(isinstance(mask, Fill) and mask.flows for mask in found.masks)
        length, count = map(at_hand, attention.shape[-2:])
        return length * count < max(worth.masked, worth.flowing if flows else 0)

    def _known(self, masks: Sequence[Mask]) -> dict[Mask, torch.Tensor]:
        """The data of masks that depend on no input."""
        found = {}
        with torch.no_grad():
            for mask in masks:
                data = evaluated(mask.mask, self._data, self._call_of, _MOST_KNOWN)
                if data is not None:
                    found[mask] = data
        return found

    def _call_of(self, value: Value) -> Any:
        node = self._makers.get(value)
        if node is None:
            return None
        kwargs = dict(node.kwargs)
        return node.op, node.args, kwargs, node.outputs, node.origin, node.grad_enabled

    # --- where operands come from ---------------------------------------------------------------

    def _sources(self, attention: Attention) -> tuple[Value, Value, Value]:
        """What operands are copies or views of, in which kernels read them as well."""
        batch, heads, length, count = attention.shape
        width = type_of(attention.query).shape[-1]
        out_width = type_of(attention.values).shape[-1]
        return (
            self._source(attention.query, (batch, heads, length, width)),
            self._source(attention.keys, (batch, heads, width, count)),
            self._source(attention.values, (batch, heads, count, out_width)),
        )

    def _source(self, operand: Value, shape: Sequence[Size]) -> Value:
        """The first value on the way up that has the heads apart, or what that is a copy of;
        elements are in its order. Else the operand itself."""
        value, found, wanted = operand, operand, _without_ones(shape)
        while True:
            kind, node = type_of(value), self._makers.get(value)
            is_found = _without_ones(kind.shape) == wanted and len(kind.shape) >= 3
            if is_found and not _overlaps(kind):
                found = value
            if node is None or node in self._gone or not _keeps_order(node):
                return found
            if is_found and str(node.op) != "aten.clone.default":
                return found
            value = node.args[0]

    # --- the new nodes --------------------------------------------------------------------------

    def _renamed(
        self, nodes: Sequence[Node], new: dict[Value, Value], attention: Attention
    ) -> list[Node]:
        """Nodes in the numbering of the graph, with the mode of those that they stand for. new: of
        their values, those that have a number."""
        made = []
        for node in nodes:
            for value in node.outputs:
                if value is not None and value not in new:
                    new[value] = Value(next(self._numbers), value.type)
            outputs = tuple([None if value is None else new[value] for value in node.outputs])
            node = replace(replace_operands(node, new), outputs=outputs)
            made.append(replace(node, grad_enabled=attention.softmax.grad_enabled))
        return made


def _is_kernel(node: Node) -> bool:
    name = node.op._schema.name.removeprefix("aten::")
    return name.startswith(_KERNEL) and name != _MATH


def _is_small(attention: Attention, masks: Sequence[TensorType]) -> bool:
    """Whether masks that are read twice are half as large as the scores at most."""
    scores = math.prod(map(at_hand, attention.shape))
    return all(2 * math.prod(map(at_hand, mask.shape)) <= scores for mask in masks)


_ORDERED = frozenset(
    "view _unsafe_view _reshape_alias unsqueeze squeeze squeeze.dim squeeze.dims expand "
    "alias clone".split()
)


def _keeps_order(node: Node) -> bool:
    """Whether it gives the elements of its operand in their order."""
    name = str(node.op).removeprefix("aten.").removesuffix(".default")
    if name not in _ORDERED:
        return False
    before, after = type_of(node.args[0]), type_of(node.outputs[0])
    return name != "expand" or _without_ones(before.shape) == _without_ones(after.shape)


def _order(node: Node) -> list[int]:
    """Where the dimensions of a transpose's or permutation's result come from."""
    rank = len(type_of(node.args[0]).shape)
    if str(node.op) == "aten.permute.default":
        return [dim % rank for dim in node.args[1]]
    first, second = (dim % rank for dim in node.args[1:3])
    order = list(range(rank))
    order[first], order[second] = second, first
    return order


def _without_ones(shape: Sequence[Size]) -> list[object]:
    return [as_expr(size) for size in shape if constant_value(size) != 1]


def _overlaps(kind: TensorType) -> bool:
    """Whether several elements are one in memory."""
    return any(
        constant_value(step) == 0 and constant_value(size) != 1
        for size, step in zip(kind.shape, kind.stride, strict=True)
    )


def _carrying(graph: Graph) -> Collection[Value]:
    """The values through which gradients flow to inputs."""
    found = {v for v in graph.inputs if isinstance(v.type, TensorType) and v.type.requires_grad}
    for node in graph.nodes if found else ():
        passes = node.grad_enabled and node.op is not aten.detach.default
        if passes and any(value in found for value in operands(node)):
            found.update(v for v in node.outputs if v is not None and _is_float(v))
    return found


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype.is_floating_point
