"""Lets convolutions work on images that have their channels innermost.

    %1 = convolution(%0, ...)           %4 = clone(%0, channels_last)
    %2 = relu(%1)                 ->    %1 = convolution(%4, ...)     # channels last
    %3 = convolution(%2, ...)           %2 = relu(%1)                 # likewise
    return %3                           %3 = convolution(%2, ...)
                                        return clone(%3, contiguous_format)

The library's convolutions have that layout, or a close one, inside: images in row-major order are
reordered before and after each. Operators that treat every place of an image alike keep the layout
on the way to the next convolution; for any other the image is put back as it was, as for whatever
the caller sees. Both conversions fuse with what makes the image, or reads it.

Weights are copied at every call, since a caller may change them at any time: where that costs more
than it saves, a convolution stays as it is. On a GPU it costs nothing more: the library reorders
them, too, at every call.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch

from braze.ir.graph import Graph, Node, Value, operands
from braze.ir.random_ops import is_random
from braze.ir.types import Size, TensorType
from braze.rewrite.editing import replace_operands, with_nodes
from braze.shapes.expr import as_expr, simplified, symbols
from braze.shapes.substitution import evaluate

_HALVES = (torch.bfloat16, torch.float16)


@final
@dataclass(frozen=True, slots=True)
class LayoutPrices:
    """What moving is weighed by, for a kind of device.

    worth: elements that convolutions need not reorder, for each that is converted elsewhere.
    counts_weights: a weight's copy is a cost of its own.
    only_matrix_units: float32 stays as it is where it may not be computed as TF32.
    """

    worth: float
    counts_weights: bool
    only_matrix_units: bool


# CPU: a conversion is our own loop across memory, the library's reorder is in blocks. CUDA, an
# H200: convolutions with 3x3 windows take 0.45 to 0.6 of the time channels-last, stems 0.7, each
# channel by itself or 32 groups 0.3 to 0.5, in TF32 and in bfloat16; 1x1 ones 0.9 to 1. Weights'
# copies are 5 to 15 us by ATen's kernels, and some are one kernel of ours. A reordered element
# costs what one converted by us does, but forwards whose images are saved row-major for a backward
# convert as many as they save: so twice. Without matrix units row-major is the library's layout.
PRICES: Mapping[str, LayoutPrices] = {
    "cpu": LayoutPrices(3, counts_weights=True, only_matrix_units=False),
    "cuda": LayoutPrices(2, counts_weights=False, only_matrix_units=True),
}

# They treat every place of an image alike, though PyTorch does not tag them as pointwise.
_KEEP_LAYOUT = frozenset(
    {
        "aten::_adaptive_avg_pool2d",
        "aten::_native_batch_norm_legit_no_training",
        "aten::avg_pool2d",
        "aten::cat",
        "aten::constant_pad_nd",
        "aten::hardswish",
        "aten::max_pool2d_with_indices",
        "aten::upsample_bilinear2d",
        "aten::upsample_nearest2d",
    }
)
# They read an image in any layout, and what they make has none of its own.
_READ_ANY = frozenset({"aten::amax", "aten::amin", "aten::mean", "aten::sum", "aten::var_mean"})


def prefer_channels_last(graph: Graph, prices: Mapping[str, LayoutPrices] = PRICES) -> Graph:
    """The graph with convolutions, and what lies between them, in channels-last layout."""
    gaining = {node: price for node in graph.nodes if (price := _price(node, prices)) is not None}
    if not gaining:
        return graph
    mover = _Mover(graph, gaining)
    for node in graph.nodes:
        mover.add(node)
    moved = mover.finish(graph)
    worth = max(price.worth for price in gaining.values())
    return moved if mover.converted * worth <= mover.saved else graph


def _price(node: Node, prices: Mapping[str, LayoutPrices]) -> LayoutPrices | None:
    """What a convolution is weighed by that gains: what it needs not reorder is more than its
    weights. None: it does not."""
    if str(node.op) != "aten.convolution.default":
        return None
    x, weight, _, _, _, _, transposed = node.args[:7]
    result = node.outputs[0]
    if transposed or result is None or not (_is_image(x) and _is_image(result)):
        return None
    price = prices.get(x.type.device.type)
    if price is None or not _suits(x.type.dtype, price):
        return None
    if not price.counts_weights or _is_laid_out(weight.type, _CHANNELS_LAST):
        return price
    small = _count(weight.type.shape) <= _count(x.type.shape) + _count(result.type.shape)
    return price if small else None


def _suits(dtype: torch.dtype, price: LayoutPrices) -> bool:
    if dtype in _HALVES:
        return True
    library = torch.backends.cudnn
    return dtype is torch.float32 and (not price.only_matrix_units or library.allow_tf32)


def _count(shape: Any) -> int:
    """The number of elements, at the sizes at hand."""
    sizes = [as_expr(size) for size in shape]
    return math.prod(evaluate(n, {s: s.hint or 1 for s in symbols(n)}) for n in sizes)


def _is_image(value: Any) -> bool:
    """A tensor (batch, channels, height, width), row-major."""
    kind = value.type if type(value) is Value else None
    return type(kind) is TensorType and len(kind.shape) == 4 and _is_laid_out(kind, (3, 2, 1, 0))


_CHANNELS_LAST = (1, 3, 2, 0)


def _is_laid_out(kind: TensorType, order: Sequence[int]) -> bool:
    """Whether memory goes through the dimensions in this order, the fastest first."""
    steps = _strides(kind.shape, order)
    return 0 in kind.shape or all(
        size == 1 or have == want for size, have, want in zip(kind.shape, kind.stride, steps)
    )


def _strides(shape: Sequence[Size], order: Sequence[int]) -> tuple[Size, ...]:
    """Dense strides, the dimensions in this order from the fastest."""
    made: list[Size] = [1] * len(shape)
    step: Size = 1
    for dim in order:
        made[dim] = step
        size = shape[dim]
        step = simplified(as_expr(step) * (max(size, 1) if type(size) is int else size))
    return tuple(made)


@functools.cache
def _keeps_layout(op: torch._ops.OpOverload) -> bool:
    listed = op._schema.name in _KEEP_LAYOUT or torch.Tag.pointwise in op.tags
    return listed and not is_random(op) and not op._schema.is_mutable


@final
class _Mover:
    """Writes the nodes anew. moved: row-major image -> the same in channels-last layout.
    gaining: the convolutions that gain. saved: elements of images that convolutions need not
    reorder; converted: that are copied from one layout to the other."""

    def __init__(self, graph: Graph, gaining: Mapping[Node, LayoutPrices]) -> None:
        self.nodes: list[Node] = []
        self._gaining = gaining
        self.saved = self.converted = 0
        self.moved: dict[Value, Value] = {}
        self._put_back: dict[Value, Value] = {}
        self._makers: dict[Value, Node] = {}
        last = max(
            (v.index for node in graph.nodes for v in node.outputs if v is not None), default=0
        )
        self._numbers = itertools.count(1 + max(last, *(v.index for v in graph.inputs)))

    def add(self, node: Node) -> None:
        """A node in the layout that suits it."""
        price = self._gaining.get(node)
        if price is not None:
            x, weight, *rest = node.args
            self.saved += _count(x.type.shape) + _count(node.outputs[0].type.shape)  # type: ignore[union-attr]
            image, before = self._channels_last(x, node), self.converted
            args = (image, self._channels_last(weight, node), *rest)
            if not price.counts_weights:
                self.converted = before
            self._append_moved(replace(node, args=args))
        elif not any(value in self.moved for value in operands(node)):
            self.nodes.append(node)
        elif _keeps_layout(node.op) and "memory_format" not in dict(node.kwargs):
            moved = replace_operands(node, self.moved)
            reads_image = any(
                value in self.moved and tuple(value.type.shape[2:]) != (1, 1)  # type: ignore[union-attr]
                for value in operands(node)
            )
            if reads_image:
                self._append_moved(moved)
            else:
                self.nodes.append(moved)
        elif node.op._schema.name in _READ_ANY:
            self.nodes.append(replace_operands(node, self.moved))
        else:
            back = {value: self.original(value) for value in operands(node) if value in self.moved}
            self.nodes.append(replace_operands(node, back))

    def _append_moved(self, node: Node) -> None:
        outputs: list[Value | None] = []
        for value in node.outputs:
            if value is not None and _is_image(value):
                self.moved[value] = value = self._new(value)
                self._makers[value] = node
            outputs.append(value)
        self.nodes.append(replace(node, outputs=tuple(outputs)))

    def _new(self, value: Value) -> Value:
        kind = value.type
        assert type(kind) is TensorType
        stride = _strides(kind.shape, _CHANNELS_LAST)
        return Value(next(self._numbers), replace(kind, stride=stride))

    def _channels_last(self, value: Value, reader: Node) -> Value:
        """The value in channels-last layout, copied where it is in another."""
        if value not in self.moved:
            assert type(value.type) is TensorType
            if _is_laid_out(value.type, _CHANNELS_LAST):
                return value
            self.moved[value] = self._clone(value, self._new(value), torch.channels_last, reader)
        return self.moved[value]

    def original(self, value: Value) -> Value:
        """The value as it was, copied where it was moved."""
        if value in self.moved and value not in self._put_back:
            maker = self._makers.get(self.moved[value])
            if maker is None:  # a copy: the value itself is still there
                return value
            made = Value(next(self._numbers), value.type)
            contiguous = torch.contiguous_format
            self._put_back[value] = self._clone(self.moved[value], made, contiguous, maker)
        return self._put_back.get(value, value)

    def _clone(
        self, source: Value, made: Value, memory_format: torch.memory_format, near: Node
    ) -> Value:
        kwargs = (("memory_format", memory_format),)
        self.converted += _count(made.type.shape)  # type: ignore[union-attr]
        clone = torch.ops.aten.clone.default
        self.nodes.append(Node(clone, (source,), kwargs, (made,), near.origin, near.grad_enabled))
        return made

    def finish(self, graph: Graph) -> Graph:
        """The graph of these nodes; the caller sees the layouts that it saw before."""
        seen = [m.value for m in graph.mutations]
        for output in graph.outputs:
            seen.append(output.value)
            if output.alias is not None:
                seen.append(output.alias.base)
        back = {v: self.original(v) for v in seen if v in self.moved}
        return with_nodes(graph, self.nodes, back)
