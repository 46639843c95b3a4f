"""Folds batch norms of eval mode into the frozen weights before them (`options={"freeze": True}`).

    %1 = convolution(%0, %w, %b, ...)             %3 = convolution(%0, %w * g, (%b - mean) * g + s)
    %2 = batch_norm(%1, %s, ..., mean, var)  ->       # g = scale / sqrt(var + eps)
    or addmm(%b, %x, %w), mm(%x, %w)              or addmm((%b - mean) * g + s, %x, %w * g)

The new weights are computed in float64 and rounded once. Errors against float64 stay at eager's,
which rounds the norm's factor and each of its results (decisions/freeze-parameters-in-inference).
Left alone: other dtypes than float32 and float64, results that something else reads, too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, final

import torch

from braze.compat.torch.aten import aten
from braze.frozen import frozen
from braze.ir.graphs.graph import Constant, Graph, Node, Value
from braze.ir.types import TensorType
from braze.rewrite.constants.fold_constants import without_unread
from braze.rewrite.editing import fresh_numbers, present, readers_of, seen_values, type_of

_NORM = aten._native_batch_norm_legit_no_training.default
_DTYPES = (torch.float32, torch.float64)


def fold_batch_norms(graph: Graph) -> Graph:
    """The graph with each such norm folded into the convolution or product before it."""
    if not graph.constants or not any(node.op is _NORM for node in graph.nodes):
        return graph
    folder = _Folder(graph)
    for node in graph.nodes:
        if node.op is _NORM:
            folder.fold(node)
    if not folder.changed:
        return graph
    nodes = [folder.changed.get(node, node) for node in graph.nodes if node not in folder.gone]
    constants = (*graph.constants, *folder.made)
    return without_unread(replace(graph, nodes=tuple(nodes), constants=constants))


# --- private ---------------------------------------------------------------------------------


@final
@frozen(eq=False)
class _Affine:
    """What a norm of eval mode does: x * factor + shift, by channel, in float64."""

    factor: torch.Tensor
    shift: torch.Tensor


@final
class _Folder:
    """changed: nodes that are replaced; gone: those that are left out; made: new constants."""

    def __init__(self, graph: Graph) -> None:
        self.changed: dict[Node, Node] = {}
        self.gone: set[Node] = set()
        self.made: list[Constant] = []
        self._data = {constant.value: constant.tensor for constant in graph.constants}
        self._makers = {value: node for node in graph.nodes for value in present(node.outputs)}
        self._readers = readers_of(graph)
        self._seen = seen_values(graph)
        self._numbers = fresh_numbers(graph)

    def fold(self, norm: Node) -> None:
        """Fold a norm, if what is before it allows that."""
        image, *parameters = norm.args[:5]
        before = self._makers.get(image)
        affine = self._affine(parameters, norm.args[6])
        if before is None or affine is None or before in self.changed or before in self.gone:
            return
        unread = list(present(norm.outputs[1:]))
        if any(value in self._readers or value in self._seen for value in unread):
            return
        if image in self._seen or len(self._readers.get(image, [])) != 1 or not _is_same(norm):
            return
        fold = _FOLDS.get(before.op)
        args = None if fold is None or before.kwargs else fold(self, before, affine)
        if args is None:
            return
        op = aten.addmm.default if before.op is aten.mm.default else before.op
        self.gone.add(before)
        self.changed[norm] = Node(
            op, args, (), norm.outputs[:1], before.origin, before.grad_enabled
        )

    def convolution(self, node: Node, affine: _Affine) -> tuple[object, ...] | None:
        """The arguments of a convolution that does the norm, too."""
        image, weight, bias, *rest = node.args
        transposed, groups = rest[3], rest[5]
        data, before = self._data.get(weight), None if bias is None else self._data.get(bias)
        if data is None or (bias is not None and before is None) or data.dtype not in _DTYPES:
            return None
        if transposed and groups != 1:
            return None
        shape = [1] * data.dim()
        shape[1 if transposed else 0] = -1
        made = (data.double() * affine.factor.view(shape)).to(data.dtype)
        return (image, self._constant(made), self._bias(before, affine, data.dtype), *rest)

    def product(self, node: Node, affine: _Affine) -> tuple[object, ...] | None:
        """The arguments of an addmm that does the norm, too."""
        bias, rows, matrix = node.args if len(node.args) == 3 else (None, *node.args)
        data, before = self._contents(matrix), None if bias is None else self._data.get(bias)
        if data is None or (bias is not None and (before is None or before.dim() != 1)):
            return None
        if data.dtype not in _DTYPES:
            return None
        made = torch.empty_like(data)  # in the same order in memory
        made.copy_(data.double() * affine.factor)
        return self._bias(before, affine, data.dtype), rows, self._constant(made)

    def _affine(self, parameters: list[Any], eps: float) -> _Affine | None:
        scale, shift, mean, variance = [
            None if value is None else self._data.get(value) for value in parameters
        ]
        if mean is None or variance is None or mean.dtype not in _DTYPES:
            return None
        for value, data in zip(parameters[:2], (scale, shift)):
            if value is not None and data is None:
                return None
        factor = 1 / (variance.double() + eps).sqrt()
        if scale is not None:
            factor = factor * scale.double()
        added = -mean.double() * factor
        if shift is not None:
            added = added + shift.double()
        is_finite = bool(factor.isfinite().all() and added.isfinite().all())
        return _Affine(factor, added) if is_finite else None

    def _bias(self, before: torch.Tensor | None, affine: _Affine, dtype: torch.dtype) -> Value:
        shift = affine.shift
        if before is not None:
            shift = shift + before.double() * affine.factor
        return self._constant(shift.to(dtype))

    def _contents(self, value: Value) -> torch.Tensor | None:
        """Those of a constant or of a transposed one."""
        node = self._makers.get(value)
        if node is None:
            return self._data.get(value)
        found = self._data.get(node.args[0]) if node.op is aten.t.default else None
        return None if found is None else found.t()

    def _constant(self, data: torch.Tensor) -> Value:
        kind = TensorType(data.dtype, tuple(data.shape), data.stride(), data.device)
        value = Value(next(self._numbers), kind)
        self.made.append(Constant(value, data))
        return value


def _is_same(norm: Node) -> bool:
    """Whether the norm leaves shape, dtype and order in memory as they are."""
    image, made = type_of(norm.args[0]), type_of(norm.outputs[0])
    same = (image.shape, image.stride, image.dtype) == (made.shape, made.stride, made.dtype)
    return same and image.dtype in _DTYPES


_FOLDS: dict[Any, Any] = {
    aten.convolution.default: _Folder.convolution,
    aten.addmm.default: _Folder.product,
    aten.mm.default: _Folder.product,
}
