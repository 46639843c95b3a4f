"""Pads half-precision matrix products to the alignment of the library's fast kernels.

    %2 = mm(%0, %1)                      # [4096, 768] @ [768, 50257]
becomes
    %3 = constant_pad_nd(%1, [0, 7])     # [768, 50264], in the layout of %1
    %4 = mm(%0, %3)                      # [4096, 50264]
    %5 = slice(%4, 1, 0, 50257)
    %2 = clone(%5)                       # in the layout that it had

The kernels that use matrix units at their full rate read and write 16 bytes at a time, so that
the rows of all three matrices have to begin at multiples of 16 bytes: cuBLAS says that it is
fastest where the contiguous extents are multiples of 8 halves. A vocabulary of 50,257 is not.
Zeros are added to a summed extent; what is made of zeros beside the result is never read. The
copies fuse with what makes the operands and with what reads the result.

A large result that the caller sees would be there twice, padded and as the caller expects it. Where
nothing else needs padding, it is left to a kernel of ours (`ir/kernels/unaligned_rows.py`).

Refused: extents that are symbols, matrices with gaps between rows that no padding mends, float32,
and products that gain less than the copies cost (`Rates`). Operands are padded at each call, since
a caller may write to them at any time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.compat.torch.aten import aten
from braze.frozen import frozen
from braze.ir.device_model import DeviceModel, model_of_device
from braze.ir.graphs.graph import Graph, Node, Value, devices_of
from braze.ir.kernels.unaligned_rows import (
    ALIGNED,
    HALVES,
    contiguous_dim,
    has_odd_rows,
    is_aligned,
)
from braze.ir.types import Size, TensorType
from braze.rewrite.editing import (
    at_hand,
    escaping_values,
    fresh_numbers,
    row_major,
    type_of,
    with_nodes,
)
from braze.shapes.expr import Expr, as_expr, constant_value, simplified

# Operator -> the number of the first matrix among its arguments. Before it is what is added.
_PRODUCTS: Mapping[str, int] = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
}
_TRANSPOSES = frozenset({"aten.t.default", "aten.transpose.int"})


@final
@frozen
class Rates:
    """What padding is weighed by.

    aligned, unaligned: floating-point operations a second, the latter by the bytes at whose
    multiples rows begin; memory: bytes a second. call: seconds of a kernel more. worth: how often
    the copies' time has to be gained.
    """

    aligned: float
    unaligned: Mapping[int, float]
    memory: float
    call: float
    worth: float


# An H200, measured: vocabularies of 50,257 (2 bytes) and 30,522 (4 bytes), 4,096 and 8,192 rows.
# Of 8 bytes nothing was measured: between the others.
def rates_of(device: DeviceModel) -> Rates:
    """What padding is weighed by on a GPU."""
    return Rates(
        aligned=device.aligned_products(),
        unaligned={size: device.aligned_products(size) for size in (2, 4, 8)},
        memory=device.memory,
        call=device.launch,
        worth=2.0,
    )


def align_products(graph: Graph, rates: Mapping[str, Rates] | None = None) -> Graph:
    """The graph with products padded where that pays; rates: by type of device, those of this
    machine's if not given."""
    if rates is None:
        devices = {device.type: device for device in devices_of(graph) if device.type == "cuda"}
        rates = {kind: rates_of(model_of_device(device)) for kind, device in devices.items()}
    plans = {node: plan for node in graph.nodes if (plan := _plan(node, rates)) is not None}
    seen = _seen(graph) if plans else ()
    plans = {node: plan for node, plan in plans.items() if not _is_left(node, seen)}
    if not plans:
        return graph
    writer = _ProductRewriter(graph)
    for node in graph.nodes:
        plan = plans.get(node)
        if plan is None:
            writer.nodes.append(node)
        else:
            writer.add(node, plan)
    return with_nodes(graph, writer.nodes, {})


# --- which products, and by how much -------------------------------------------------------------


@final
@frozen
class _Product:
    """A product's operands and result: (batch, m, k) @ (batch, k, n) -> (batch, m, n)."""

    added: Value | None
    first: Value
    second: Value
    result: Value

    def matrices(self) -> Iterator[tuple[TensorType, str]]:
        """The types of the three, and the names of their last two dimensions."""
        yield type_of(self.first), "mk"
        yield type_of(self.second), "kn"
        yield type_of(self.result), "mn"

    def sizes(self) -> dict[str, int]:
        """The extents at hand, the batch's too."""
        first, second = type_of(self.first).shape, type_of(self.second).shape
        named = {"m": first[-2], "k": first[-1], "n": second[-1]}
        batch = at_hand(first[0]) if len(first) == 3 else 1
        return {"batch": batch, **{name: at_hand(size) for name, size in named.items()}}


def _product_of(node: Node) -> _Product | None:
    position = _PRODUCTS.get(node.op._schema.name)
    if position is None or node.op._schema.overload_name not in ("", "default"):
        return None
    first, second = node.args[position : position + 2]
    (result,) = node.outputs
    if result is None or not all(type(x) is Value for x in (first, second)):
        return None
    return _Product(node.args[0] if position else None, first, second, result)


def _plan(node: Node, rates: Mapping[str, Rates]) -> dict[str, int] | None:
    """Name of a dimension (m, k, n) -> elements that are added to it; None: stays as it is."""
    product = _product_of(node)
    if product is None:
        return None
    kind = type_of(product.first)
    price = rates.get(kind.device.type)
    if price is None or kind.dtype not in HALVES or type_of(product.result).dtype != kind.dtype:
        return None
    added = _added(product)
    return added if added and _pays(product, added, price) else None


def _added(product: _Product) -> dict[str, int]:
    """What makes every row begin at a multiple of 16 bytes; empty: nothing needs to, or can."""
    added: dict[str, int] = {}
    for _ in range(2):  # a copy for another's sake has no gaps, which may have aligned it
        for matrix, names in product.matrices():
            is_copied = any(name in added for name in names)
            if is_aligned(matrix.stride) and not is_copied:
                continue
            dim = contiguous_dim(matrix.stride)
            extent = None if dim is None else constant_value(matrix.shape[dim])
            if dim is None or extent is None or (extent % ALIGNED == 0 and not is_copied):
                return {}
            if extent % ALIGNED:
                added[names[dim]] = -extent % ALIGNED
    return added


def _pays(product: _Product, added: Mapping[str, int], price: Rates) -> bool:
    """Whether the faster kernel gains more than the copies cost."""
    sizes = product.sizes()
    copied = calls = total = 0
    for _, names in product.matrices():
        size = 2 * math.prod(sizes[name] for name in ("batch", *names))
        total += size
        if any(name in added for name in names):
            copied += 2 * size  # read and written
            calls += 1
    work = 2 * math.prod(sizes.values())
    least = total / price.memory
    slow = price.unaligned[min(_alignment(kind) for kind, _ in product.matrices())]
    gain = max(work / slow, least) - max(work / price.aligned, least)
    return gain > price.worth * (copied / price.memory + calls * price.call)


def _alignment(kind: TensorType) -> int:
    """The bytes at whose multiples rows begin: 2, 4 or 8, or more."""
    dim = contiguous_dim(kind.stride)
    steps = [as_expr(s) for n, s in enumerate(kind.stride) if n - len(kind.stride) != dim]
    halves = math.gcd(*[constant_value(step) or 1 for step in steps])
    return 2 * math.gcd(halves, ALIGNED // 2)


def _seen(graph: Graph) -> set[Value]:
    """What the caller gets to see, also through `_unsafe_view`, which says nothing of aliases."""
    seen = escaping_values(graph)
    for node in reversed(graph.nodes):
        if node.op._schema.name == "aten::_unsafe_view" and node.outputs[0] in seen:
            seen.add(node.args[0])
    return seen


def _is_left(node: Node, seen: Collection[Value]) -> bool:
    """Whether the result is one that a kernel of ours writes for the caller."""
    product = _product_of(node)
    assert product is not None
    if product.result not in seen or node.kwargs:
        return False
    kinds = [kind for kind, _ in product.matrices()]
    sizes = (*kinds[0].shape, kinds[1].shape[-1])
    return has_odd_rows(kinds[0].dtype, sizes, [kind.stride for kind in kinds])


# --- the new nodes -------------------------------------------------------------------------------


@final
class _ProductRewriter:
    """Writes products anew. padded: (value, elements added to its last two dimensions) -> the
    padded value."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self._numbers = fresh_numbers(graph)
        self._makers = {value: node for node in graph.nodes for value in node.outputs}
        self._padded: dict[tuple[Value, tuple[int, int]], Value] = {}

    def add(self, node: Node, plan: Mapping[str, int]) -> None:
        """The product with padded operands, and its result as it was."""
        product = _product_of(node)
        assert product is not None
        m, k, n = (plan.get(name, 0) for name in "mkn")
        first = self._pad(product.first, (m, k), node)
        second = self._pad(product.second, (k, n), node)
        args = [self._pad_added(product.added, (m, n), node)] if product.added else []
        args += [first, second, *node.args[len(args) + 2 :]]
        kind = type_of(product.result)
        if not m and not n:
            self.nodes.append(replace(node, args=tuple(args)))
            return
        *batch, rows, columns = kind.shape
        shape = (*batch, _plus(rows, m), _plus(columns, n))
        wide = self._value(kind, shape, row_major(shape))
        self.nodes.append(replace(node, args=tuple(args), outputs=(wide,)))
        rank = len(shape)
        for dim, size, more in ((rank - 2, rows, m), (rank - 1, columns, n)):
            if more:
                wide = self._sliced(wide, dim, 0, size, node)
        kwargs = (("memory_format", torch.contiguous_format),)
        self._call(aten.clone.default, (wide,), product.result, node, kwargs)

    def _pad(self, value: Value, added: tuple[int, int], near: Node) -> Value:
        """The matrix with zeros behind its rows and columns, in its layout; of what is
        transposed, the matrix before is padded, which others may read, too."""
        if added == (0, 0):
            return value
        maker = self._makers.get(value)
        if maker is not None and _swaps_last_two(maker):
            base = self._pad(maker.args[0], (added[1], added[0]), near)
            kind, given = type_of(value), type_of(base)
            *batch, first, second = range(len(given.shape))
            order = [*batch, second, first]
            made = self._value(
                kind,
                tuple([given.shape[d] for d in order]),
                tuple([given.stride[d] for d in order]),
            )
            return self._call(maker.op, (base, *maker.args[1:]), made, near)
        found = self._padded.get((value, added))
        if found is None:
            kind = type_of(value)
            rows, columns = kind.shape[-2:]
            shape = (*kind.shape[:-2], _plus(rows, added[0]), _plus(columns, added[1]))
            made = self._value(kind, shape, _dense_along(shape, contiguous_dim(kind.stride)))
            found = self._padded[value, added] = self._padding(value, added, made, near)
        return found

    def _pad_added(self, value: Value, added: tuple[int, int], near: Node) -> Value:
        """What is added to the product, where it is as large as that and not broadcast."""
        kind = type_of(value)
        last = [added[dim] for dim in range(-len(kind.shape), 0) if dim >= -2]
        sizes = kind.shape[-len(last) :] if last else ()
        more = [0 if constant_value(n) == 1 else a for n, a in zip(sizes, last, strict=True)]
        if not any(more):
            return value
        shape = (*kind.shape[: -len(more)], *map(_plus, sizes, more))
        made = self._value(kind, shape, row_major(shape))
        return self._padding(value, more, made, near)

    def _padding(self, value: Value, added: Sequence[int], made: Value, near: Node) -> Value:
        behind = [n for more in reversed(added) for n in (0, more)]
        while behind[-1] == 0:
            behind = behind[:-2]
        return self._call(aten.constant_pad_nd.default, (value, behind), made, near)

    def _sliced(self, value: Value, dim: int, start: int, stop: Size, near: Node) -> Value:
        kind = type_of(value)
        length = _plus(stop, -start)
        shape = tuple([length if d == dim else s for d, s in enumerate(kind.shape)])
        made = self._value(kind, shape, kind.stride)
        return self._call(aten.slice.Tensor, (value, dim, start, stop), made, near)

    def _value(self, like: TensorType, shape: Sequence[Size], stride: Sequence[Size]) -> Value:
        kind = replace(like, shape=tuple(shape), stride=tuple(stride))
        return Value(next(self._numbers), kind)

    def _call(self, op: Any, args: Any, made: Value, near: Node, kwargs: Any = ()) -> Value:
        self.nodes.append(Node(op, args, kwargs, (made,), near.origin, near.grad_enabled))
        return made


def _swaps_last_two(node: Node) -> bool:
    if str(node.op) not in _TRANSPOSES or type(node.args[0]) is not Value:
        return False
    rank = len(type_of(node.args[0]).shape)
    if str(node.op) == "aten.t.default":
        return rank == 2
    return rank >= 2 and {d % rank for d in node.args[1:3]} == {rank - 2, rank - 1}


def _plus(size: Size, more: int) -> Size:
    return _number(as_expr(size) + more)


def _number(size: Expr) -> Size:
    constant = constant_value(size)
    return simplified(size) if constant is None else constant


def _dense_along(shape: Sequence[Size], dim: int | None) -> tuple[Size, ...]:
    """Dense strides, the batch outermost and memory along that one of the last two dimensions."""
    if dim != -2:
        return row_major(shape)
    *batch, rows, columns = shape
    *outer, across, along = row_major((*batch, columns, rows))
    return (*outer, along, across)
