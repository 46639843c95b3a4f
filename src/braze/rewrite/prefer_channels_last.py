"""Moves convolutions and what lies between them to channels-last layout.

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

Where gradients are computed, too, layouts are chosen for both graphs together, before they are
split: what the forward saves is in the layout in which the backward reads it. Gradients of weights
come in the layout of the weights that the library was given, and are put back as well. A backward
copies inputs anew, so that no copy is kept from the forward on.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard, final

import torch

from braze.compat.torch.ambient_state import convolution_precision
from braze.compat.torch.aten import aten
from braze.compat.torch.registered_ops import convolution as fused_convolution
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Value, operands, replace_operands
from braze.ir.graphs.joint_graph import JointGraph, joint_as_graph
from braze.ir.graphs.random_ops import is_random
from braze.ir.types import Size, TensorType
from braze.rewrite.editing import fresh_numbers, type_of
from braze.shapes.expr import as_expr, simplified, symbols
from braze.shapes.substitution import evaluate

_HALVES = (torch.bfloat16, torch.float16)


@final
@frozen
class LayoutPrices:
    """What moving is weighed by, for a kind of device.

    worth: elements that convolutions need not reorder, for each that is converted elsewhere.
    counts_weights: a weight's copy is a cost of its own.
    only_matrix_units: float32 stays as it is where it may not be computed as TF32.
    backward: the gradients of convolutions gain, too.
    groups: norms over groups of channels, which lie in pieces then, keep the layout.
    """

    worth: float
    counts_weights: bool
    only_matrix_units: bool
    backward: bool
    groups: bool


# CPU: a conversion is our own loop across memory, the library's reorder is in blocks. CUDA, an
# H200: convolutions with 3x3 windows take 0.45 to 0.6 of the time channels-last, stems 0.7, each
# channel by itself or 32 groups 0.3 to 0.5, in TF32 and in bfloat16; 1x1 ones 0.9 to 1. Weights'
# copies are 5 to 15 us by ATen's kernels, and some are one kernel of ours. A reordered element
# costs what one converted by us does, but forwards whose images are saved row-major for a backward
# convert as many as they save: so twice. Without matrix units row-major is the library's layout.
# A norm over groups of two channels costs a CPU a fifth of the time of what is around it.
PRICES: Mapping[str, LayoutPrices] = {
    "cpu": LayoutPrices(
        3, counts_weights=True, only_matrix_units=False, backward=False, groups=False
    ),
    "cuda": LayoutPrices(
        2, counts_weights=False, only_matrix_units=True, backward=True, groups=True
    ),
}

# They treat every place of an image alike, though PyTorch does not tag them as pointwise.
_KEEP_LAYOUT = frozenset(
    {
        "aten::_adaptive_avg_pool2d",
        "aten::_adaptive_avg_pool2d_backward",
        "aten::_native_batch_norm_legit",
        "aten::_native_batch_norm_legit_functional",
        "aten::_native_batch_norm_legit_no_training",
        "aten::avg_pool2d",
        "aten::avg_pool2d_backward",
        "aten::cat",
        "aten::constant_pad_nd",
        "aten::empty_like",
        "aten::fill",
        "aten::full_like",
        "aten::hardswish",
        "aten::max_pool2d_with_indices",
        "aten::max_pool2d_with_indices_backward",
        "aten::native_group_norm",
        "aten::native_group_norm_backward",
        "aten::ones_like",
        "aten::native_batch_norm_backward",
        "aten::upsample_bilinear2d",
        "aten::upsample_bilinear2d_backward",
        "aten::upsample_nearest2d",
        "aten::upsample_nearest2d_backward",
        "aten::zeros_like",
    }
)
# They read an image in any layout, and what they make has none of its own.
_READ_ANY = frozenset({"aten::amax", "aten::amin", "aten::mean", "aten::sum", "aten::var_mean"})
# The same of images whose dimensions are permuted: a norm over channels has them last.
_READ_PERMUTED = frozenset({"aten::native_layer_norm", "aten::native_layer_norm_backward"})


def prefer_channels_last(graph: Graph, prices: Mapping[str, LayoutPrices] = PRICES) -> Graph:
    """The graph with convolutions, and what lies between them, in channels-last layout."""
    gaining = _gaining(graph.nodes, prices)
    if not gaining:
        return graph
    mover = _Mover(graph, gaining)
    for node in graph.nodes:
        mover.add(node)
    mover.put_back(_seen(graph))
    return replace(graph, nodes=tuple(mover.nodes)) if mover.pays() else graph


def prefer_channels_last_in_joint(
    joint: JointGraph, prices: Mapping[str, LayoutPrices] = PRICES
) -> JointGraph:
    """The same for a graph with its backward, before it is split."""
    gaining = _gaining((*joint.forward.nodes, *joint.backward), prices)
    if not gaining or not all(found.price.backward for found in gaining.values()):
        return joint
    mover = _Mover(joint_as_graph(joint), gaining)
    for node in joint.forward.nodes:
        mover.add(node)
    mover.put_back((*_seen(joint.forward), *joint.results))
    forward = tuple(mover.take_nodes())
    moved = mover.computed()
    for node in joint.backward:
        mover.add(node)
    mover.put_back(gradient for gradient in joint.gradients if gradient is not None)
    if not mover.pays():
        return joint
    return replace(
        joint,
        forward=replace(joint.forward, nodes=forward),
        backward=tuple(mover.nodes),
        moved=moved,
    )


def _seen(graph: Graph) -> list[Value]:
    """What the caller sees in the layouts of eager."""
    seen = [m.value for m in graph.mutations]
    for output in graph.outputs:
        seen.append(output.value)
        if output.alias is not None:
            seen.append(output.alias.base)
    return seen


# --- which convolutions ----------------------------------------------------------------------


@final
@frozen
class _LayoutOfConvolution:
    """A convolution that gains, or the gradients of one. images: places among its arguments;
    weight: the weight's, None where the runtime lays it out. elements: that the library reads and
    writes."""

    price: LayoutPrices
    images: tuple[int, ...]
    weight: int | None
    elements: int
    is_backward: bool = False


def _gaining(
    nodes: Iterable[Node], prices: Mapping[str, LayoutPrices]
) -> dict[Node, _LayoutOfConvolution]:
    found = ((node, _convolution(node, prices)) for node in nodes)
    return {node: convolution for node, convolution in found if convolution is not None}


def _convolution(node: Node, prices: Mapping[str, LayoutPrices]) -> _LayoutOfConvolution | None:
    """What the layouts of a convolution are weighed by: what it needs not reorder is more than its
    weights. None: it does not gain, or is none."""
    other: Any
    if node.op is fused_convolution:
        return _fused(node, prices)
    name = str(node.op)
    places: tuple[int, ...] = (0,)
    if name == "aten.convolution.default":
        x, weight, _, _, _, _, transposed = node.args[:7]
        other, sides = node.outputs[0], 1
    elif name == "aten.convolution_backward.default":
        other, x, weight = node.args[:3]
        transposed, sides = node.args[7], sum(map(bool, node.args[10][:2]))
        places = (0, 1)
    else:
        return None
    if transposed or not (is_image(x) and _has_four(other)):
        return None
    kind = type_of(x)
    price = prices.get(kind.device.type)
    if price is None or not _suits(kind.dtype, price):
        return None
    if len(places) > 1 and not (price.backward and sides):
        return None
    images = _count(kind.shape) + _count(other.type.shape)
    found = _LayoutOfConvolution(price, places, len(places), sides * images, len(places) > 1)
    if not price.counts_weights or _is_laid_out(weight.type, _CHANNELS_LAST):
        return found
    return found if _count(weight.type.shape) <= images else None


def _fused(node: Node, prices: Mapping[str, LayoutPrices]) -> _LayoutOfConvolution | None:
    """The same of one with packed weights, which are not laid out in each call."""
    image, weight, (made,) = node.args[0], node.args[1], node.outputs
    price = prices.get(image.type.device.type)
    if price is None or made is None or not is_image(image):
        return None
    images = (0,) if node.args[5] is None else (0, 5)
    elements = sum([int(_count(type_of(value).shape)) for value in (image, made, weight)])
    return _LayoutOfConvolution(price, images, None, elements)


def _suits(dtype: torch.dtype, price: LayoutPrices) -> bool:
    if dtype in _HALVES:
        return True
    has_units = not price.only_matrix_units or convolution_precision() == "tf32"
    return dtype is torch.float32 and has_units


def _count(shape: Sequence[Size]) -> int:
    """The number of elements, at the sizes at hand."""
    sizes = [as_expr(size) for size in shape]
    return math.prod(evaluate(n, {s: s.hint or 1 for s in symbols(n)}) for n in sizes)


def _has_four(value: object) -> bool:
    kind = value.type if type(value) is Value else None
    return type(kind) is TensorType and len(kind.shape) == 4


def is_image(value: Any) -> TypeGuard[Value]:
    """A tensor (batch, channels, height, width), row-major."""
    return _has_four(value) and _is_laid_out(value.type, _ROW_MAJOR)


def is_channels_last(*values: Any) -> bool:
    """Whether all are tensors of that layout."""
    return all(_has_four(v) and _is_laid_out(v.type, _CHANNELS_LAST) for v in values)


_CHANNELS_LAST = (1, 3, 2, 0)
_ROW_MAJOR = (3, 2, 1, 0)


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


# --- the new nodes ---------------------------------------------------------------------------


@final
class _Mover:
    """Writes the nodes anew. moved: row-major image, or piece of one -> the same in channels-last
    layout. What is put back has the value's own name. gaining: the convolutions that gain."""

    def __init__(self, graph: Graph, gaining: Mapping[Node, _LayoutOfConvolution]) -> None:
        self.nodes: list[Node] = []
        self.moved: dict[Value, Value] = {}
        self._gaining = gaining
        self._groups = all(found.price.groups for found in gaining.values())
        self._saved = self._converted = 0  # elements: not reordered by the library; copied instead
        self._makers: dict[Value, Node] = {}
        self._weights: dict[Value, Value] = {}
        self._there: set[Value] = set()
        self._permuted: set[Value] = set()  # of those that are moved
        self._is_backward = False
        self._numbers = fresh_numbers(graph)

    def pays(self) -> bool:
        """Whether enough is saved."""
        worth = max(found.price.worth for found in self._gaining.values())
        return self._converted * worth <= self._saved

    def take_nodes(self) -> list[Node]:
        """The nodes so far."""
        nodes, self.nodes = self.nodes, []
        return nodes

    def computed(self) -> tuple[tuple[Value, Value], ...]:
        """What is computed in another layout, and what it was before; no pieces, no copies."""
        return tuple(
            (made, value)
            for value, made in self.moved.items()
            if made in self._makers and not _is_view(self._makers[made])
        )

    def add(self, node: Node) -> None:
        """A node in the layout that suits it."""
        found = self._gaining.get(node)
        if found is not None:
            self._add_convolution(node, found)
        elif not any(value in self.moved for value in operands(node)):
            self.nodes.append(node)
        elif _is_view(node):
            self._add_view(node)
        elif any(value in self._permuted for value in operands(node)):
            if node.op._schema.name in _READ_PERMUTED:
                self.nodes.append(replace_operands(node, self.moved))
            else:
                self._add_as_it_was(node)
        elif _keeps_layout(node.op) and not self._needs_rows(node):
            moved = replace_operands(node, self.moved)
            reads_image = any(
                value in self.moved and tuple(type_of(value).shape[2:]) != (1, 1)
                for value in operands(node)
            )
            if reads_image:
                self._append_moved(moved)
            else:
                self.nodes.append(moved)
        elif node.op._schema.name in _READ_ANY:
            self.nodes.append(replace_operands(node, self.moved))
        else:
            self._add_as_it_was(node)

    def _needs_rows(self, node: Node) -> bool:
        """Whether it names a layout; or needs one, as groups of an unknown number of channels do,
        which the library normalizes row by row."""
        if dict(node.kwargs).get("memory_format") not in (None, torch.preserve_format):
            return True
        if not node.op._schema.name.startswith("aten::native_group_norm"):
            return False
        return not (self._groups and isinstance(type_of(node.args[0]).shape[1], int))

    def _add_as_it_was(self, node: Node) -> None:
        self.put_back(operands(node))
        self.nodes.append(node)

    def put_back(self, values: Iterable[Value]) -> None:
        """Make the values as they were, where they were moved."""
        for value in values:
            made = self.moved.get(value)
            maker = None if made is None else self._makers.get(made)
            if made is None or maker is None or value in self._there:
                continue  # a copy: the value itself is still there
            self._there.add(value)
            if _is_view(maker):
                self.put_back(maker.args[:1])
                self.nodes.append(maker)
            else:
                self._clone(made, value, torch.contiguous_format, maker)

    # --- convolutions ------------------------------------------------------------------------

    def _add_convolution(self, node: Node, found: _LayoutOfConvolution) -> None:
        if found.is_backward and not self._is_backward:
            self._is_backward = True
            self._weights.clear()
            self.moved = {v: made for v, made in self.moved.items() if made in self._makers}
        self._saved += found.elements
        args = list(node.args)
        for place in found.images:
            args[place] = self._channels_last(args[place], node)
        if found.weight is not None:
            args[found.weight] = self._laid_out_weight(args[found.weight], node, found.price)
        node = replace(node, args=tuple(args))
        if found.is_backward:
            self._append_gradients(node, found.price)
        else:
            self._append_moved(node)

    def _laid_out_weight(self, weight: Value, node: Node, price: LayoutPrices) -> Value:
        assert type(weight.type) is TensorType
        if _is_laid_out(weight.type, _CHANNELS_LAST):
            return weight
        if weight not in self._weights:
            made, before = self._new(weight), self._converted
            self._weights[weight] = self._clone(weight, made, torch.channels_last, node)
            self._converted = self._converted if price.counts_weights else before
        return self._weights[weight]

    def _append_gradients(self, node: Node, price: LayoutPrices) -> None:
        """The gradient of the image stays as the library makes it; the weight's is put back."""
        image, weight, bias = node.outputs
        laid_out = weight
        if weight is not None and is_image(weight) and not _is_same_either_way(weight):
            laid_out = self._new(weight)
        image = self._move(image, node) if is_image(image) else image
        self.nodes.append(replace(node, outputs=(image, laid_out, bias)))
        if weight is not None and laid_out is not None and laid_out is not weight:
            before = self._converted
            self._clone(laid_out, weight, torch.contiguous_format, node)
            self._converted = self._converted if price.counts_weights else before

    def _channels_last(self, value: Value, reader: Node) -> Value:
        """The value in channels-last layout, copied where it is in another."""
        if value not in self.moved:
            assert type(value.type) is TensorType
            if _is_laid_out(value.type, _CHANNELS_LAST):
                return value
            self.moved[value] = self._clone(value, self._new(value), torch.channels_last, reader)
        moved = self.moved[value]
        if value in self._permuted and not is_channels_last(moved):
            return self._clone(moved, self._new(value), torch.channels_last, reader)
        return moved

    # --- others ------------------------------------------------------------------------------

    def _append_moved(self, node: Node) -> None:
        outputs = [self._move(v, node) if is_image(v) else v for v in node.outputs]
        self.nodes.append(replace(node, outputs=tuple(outputs)))

    def _add_view(self, node: Node) -> None:
        """A moved image, or a piece of one, in its layout."""
        (view,), image, rest = node.outputs, node.args[0], node.args[1:]
        assert view is not None
        stride = list(type_of(self.moved[image]).stride)
        if str(node.op) == _PERMUTE:
            stride = [stride[dim] for dim in rest[0]]
        elif rest:
            stride[rest[0]] = simplified(as_expr(stride[rest[0]]) * (*rest[3:], 1)[0])
        if str(node.op) == _PERMUTE or image in self._permuted:
            self._permuted.add(view)
        made = self._new(view, tuple(stride))
        self.moved[view], self._makers[made] = made, node
        self.nodes.append(replace(node, args=(self.moved[image], *rest), outputs=(made,)))

    def _move(self, value: Value, node: Node) -> Value:
        made = self.moved[value] = self._new(value)
        self._makers[made] = node
        return made

    def _new(self, value: Value, stride: tuple[Size, ...] | None = None) -> Value:
        kind = value.type
        assert type(kind) is TensorType
        stride = stride or _strides(kind.shape, _CHANNELS_LAST)
        return Value(next(self._numbers), replace(kind, stride=stride))

    def _clone(
        self, source: Value, made: Value, memory_format: torch.memory_format, near: Node
    ) -> Value:
        kwargs = (("memory_format", memory_format),)
        self._converted += _count(type_of(made).shape)
        clone = aten.clone.default
        self.nodes.append(Node(clone, (source,), kwargs, (made,), near.origin, near.grad_enabled))
        return made


_PERMUTE = "aten.permute.default"
_SAME = frozenset({"aten.alias.default", "aten.detach.default"})


def _is_view(node: Node) -> bool:
    """Whether it takes a piece along one dimension, all places given by position, or all of it,
    perhaps with its dimensions permuted."""
    if str(node.op) in _SAME:
        return True
    if str(node.op) == _PERMUTE:
        return not node.kwargs and len(node.args) == 2
    if str(node.op) != "aten.slice.Tensor" or node.kwargs or len(node.args) < 2:
        return False
    return type(node.args[1]) is int and node.args[1] >= 0


def _is_same_either_way(value: Value) -> bool:
    assert type(value.type) is TensorType
    return _is_laid_out(value.type, _CHANNELS_LAST)
