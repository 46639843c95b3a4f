"""Fuses convolutions of inference with what follows them, on weights that are packed once.

    %1 = convolution(%0, %w, ...)                    %8 = clone(%0, channels_last)
    %2 = batch_norm(%1, ...) in eval mode     ->     %3 = braze::convolution(%8, %w, batch norm, %5,
    %3 = relu(%2 + %5)                                   ..., "relu")      # channels last

The library's kernel adds in its registers, and takes weights in a layout of its own: the runtime
folds the norm into them (`numerics="fast"`), lays them out once and after changes, and clamps the
result while it is in the cache (`runtime/launch/packed_weights.py`). A kernel of our own, where it
is as quick (`ir/kernels/convolution_sizes.py`), takes the norm as it is, at any numerics but
eager's, and further activations. All images between are channels-last, as those kernels' are: where
conversions cost more than is saved, the graph stays as it is.

Refused: graphs that record gradients, weights that the program computes or writes to, other dtypes
than float32, transposed convolutions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.compat import private_names as private
from braze.compat.torch.aten import aten
from braze.compat.torch.registered_ops import convolution
from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Value, needs_gradients, values_in
from braze.ir.kernels.convolution_sizes import convolution_sizes
from braze.ir.types import TensorType
from braze.rewrite.editing import present, readers_of, seen_values, type_of
from braze.rewrite.prefer_channels_last import is_channels_last, is_image, prefer_channels_last


def fuse_convolutions(graph: Graph, folds_norms: bool = False) -> Graph:
    """The graph with its convolutions fused and channels last, where that pays. folds_norms: into
    weights, which rounds each of them once more: errors of deep networks were 2.5 of eager's."""
    if not _has_library() or needs_gradients(graph):
        return graph
    matcher = _Matcher(graph, folds_norms)
    for node in graph.nodes:
        matcher.match(node)
    if not matcher.found:
        return graph
    nodes = [matcher.found.get(node, node) for node in graph.nodes if node not in matcher.swallowed]
    fused = replace(graph, nodes=tuple(nodes))
    moved = prefer_channels_last(fused)
    return graph if moved is fused and not _all_fit(nodes) else moved


def _has_library() -> bool:
    names = (private.fused_convolution, private.fused_convolution_sum)
    return torch.backends.mkldnn.is_available() and None not in names


def _all_fit(nodes: Sequence[Node]) -> bool:
    """Whether images are channels-last without a conversion."""
    return all(is_channels_last(node.args[0]) for node in nodes if node.op is convolution)


@final
@frozen(eq=False)
class _Chain:
    """A convolution and what its kernel does behind it. last: the node whose result it gives; own:
    whether a kernel of ours computes it."""

    last: Node
    own: bool
    norm: tuple[Value, ...] = ()
    eps: float = 0.0
    added: Value | None = None
    activation: str = ""
    bounds: tuple[float, ...] = ()


_SMOOTH = {
    aten.hardswish.default: "hardswish",
    aten.hardsigmoid.default: "hardsigmoid",
    aten.sigmoid.default: "sigmoid",
    aten.silu.default: "silu",
}


@final
class _Matcher:
    """found: the last node of a chain -> the fused one; swallowed: the nodes before it."""

    def __init__(self, graph: Graph, folds_norms: bool) -> None:
        self._folds_norms = folds_norms
        self.found: dict[Node, Node] = {}
        self.swallowed: set[Node] = set()
        self._readers = readers_of(graph)
        self._seen = seen_values(graph)
        written = {mutation.input for mutation in graph.mutations}
        given = [*graph.inputs, *(constant.value for constant in graph.constants)]
        self._given = {value for value in given if value not in written}

    def match(self, node: Node) -> None:
        """Fuse what a node begins, if it is a convolution."""
        if not _is_plain_convolution(node, self._given):
            return
        image, weight, bias, *window, _, _, groups = node.args
        sizes = convolution_sizes(image.type.shape, weight.type.shape, (*window, groups))
        own = sizes is not None and sizes.has_own_kernel
        chain, passed = _Chain(node, own=own), []
        for step in (self._with_norm, self._with_sum, self._with_activation):
            longer = step(chain)
            if longer is not None:
                passed.append(chain.last)
                chain = longer
        behind = (list(chain.norm), chain.eps, chain.added)
        clamp = (chain.activation, list(chain.bounds))
        args = (image, weight, bias, *behind, *window, groups, *clamp)
        self.swallowed.update(passed)
        last = chain.last
        fused = Node(convolution, args, (), last.outputs[:1], last.origin, last.grad_enabled)
        self.found[last] = fused

    def _reader(self, chain: _Chain) -> Node | None:
        """The only node that reads the chain's result, where nobody sees that otherwise."""
        (value, *_) = chain.last.outputs
        readers = [] if value is None else self._readers.get(value, [])
        if value in self._seen or len(readers) != 1 or readers[0] in self.found:
            return None
        reader, made = readers[0], readers[0].outputs[0]
        if reader in self.swallowed or made is None or type(made.type) is not TensorType:
            return None
        return reader if _same_form(value, made) else None

    def _with_norm(self, chain: _Chain) -> _Chain | None:
        reader = self._reader(chain)
        norm = aten._native_batch_norm_legit_no_training.default
        if not (self._folds_norms or chain.own) or reader is None or reader.op is not norm:
            return None
        values, eps = tuple(reader.args[1:5]), reader.args[6]
        rest = list(present(reader.outputs[1:]))
        if any(value in self._readers or value in self._seen for value in rest):
            return None
        if not all(self._is_parameter(value) for value in values):
            return None
        return replace(chain, last=reader, norm=values, eps=eps)

    def _is_parameter(self, value: Any) -> bool:
        return value in self._given and value.type.dtype is torch.float32

    def _with_sum(self, chain: _Chain) -> _Chain | None:
        reader, value = self._reader(chain), chain.last.outputs[0]
        if reader is None or reader.op is not aten.add.Tensor or len(values_in(reader.args)) != 2:
            return None
        if reader.kwargs and dict(reader.kwargs) != {"alpha": 1}:
            return None
        (other,) = [argument for argument in reader.args[:2] if argument is not value]
        if not _same_form(value, other) or not (is_image(other) or is_channels_last(other)):
            return None
        return replace(chain, last=reader, added=other)

    def _with_activation(self, chain: _Chain) -> _Chain | None:
        reader = self._reader(chain)
        if reader is None or reader.kwargs:
            return None
        if reader.op is aten.relu.default:
            return replace(chain, last=reader, activation="relu")
        if chain.own and reader.op in _SMOOTH:
            return replace(chain, last=reader, activation=_SMOOTH[reader.op])
        if reader.op is aten.hardtanh.default and not values_in(reader.args[1:]):
            given = list(map(float, reader.args[1:]))
            bounds = (*given, *[-1.0, 1.0][len(given) :])
            return replace(chain, last=reader, activation="hardtanh", bounds=bounds)
        return None


def _is_plain_convolution(node: Node, given: Collection[Value]) -> bool:
    """Whether the library's fused kernel computes it, on weights from outside."""
    if node.op is not aten.convolution.default or node.kwargs or node.outputs[0] is None:
        return False
    image, weight, bias, *_, transposed, _, groups = node.args
    if transposed or type(image) is not Value or type(groups) is not int:
        return False
    made: Any = node.outputs[0]
    if not ((is_image(image) and is_image(made)) or (is_channels_last(image, made))):
        return False
    weights = [value for value in (weight, bias) if value is not None]
    if not all(value in given for value in weights):
        return False
    kinds = [type_of(value) for value in (image, made, *weights)]
    sizes = [*kinds[2].shape, *kinds[0].shape[1:]]
    return all(type(size) is int and size > 0 for size in sizes) and all(
        kind.dtype is torch.float32 and kind.device.type == "cpu" for kind in kinds
    )


def _same_form(value: object, other: object) -> bool:
    """Whether two tensors have one shape, dtype and order in memory."""
    if type(value) is not Value or type(other) is not Value:
        return False
    first, second = value.type, other.type
    return (
        type(first) is TensorType
        and type(second) is TensorType
        and (first.shape, first.stride, first.dtype, first.device)
        == (second.shape, second.stride, second.dtype, second.device)
    )
