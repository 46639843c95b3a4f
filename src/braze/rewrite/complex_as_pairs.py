"""Replaces complex arithmetic by arithmetic on real and imaginary parts.

    %3 = view_as_complex(%0)             # [n, 64, 2] float32
    %4 = mul(%3, %1)                     # %1: [64] complex64
    %5 = view_as_real(%4)
becomes
    %6 = view_as_real(%1)
    %7, %8 = select(%0, 2, 0), select(%0, 2, 1)
    %9, %10 = select(%6, 1, 0), select(%6, 1, 1)
    %5 = stack([%7 * %9 - %8 * %10, %7 * %10 + %8 * %9], 2)

so that loops compute it, fused with what is around (rotary embeddings). Parts lie beside each other
in memory, as complex numbers do. Where a complex number itself is needed, it is the pair seen as
one. Fake tensors have no conjugate bit, so no view of one is met.

Refused: scalars, operands of other precision, half-precision complex numbers, results that are not
row-major, and the CPU, whose vectors ATen uses better. So are operators whose operands come as
complex numbers where that moves more memory: loops read the parts of a copy, ATen's kernels the
numbers themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Graph, Node, Value, operands, replace_operands
from braze.ir.types import Size, TensorType
from braze.rewrite.editing import fresh_numbers, type_of, with_nodes
from braze.shapes.expr import Expr, as_expr, constant_value, simplified

_PARTS: Mapping[torch.dtype, torch.dtype] = {
    torch.complex64: torch.float32,
    torch.complex128: torch.float64,
}
DEVICES = frozenset({"cuda"})


def complex_as_pairs(graph: Graph, devices: Collection[str] = DEVICES) -> Graph:
    """The graph with such operators on real tensors."""
    computed = _worth_computing(graph, devices)
    if not computed:
        return graph
    writer = _PairRewriter(graph)
    for node in graph.nodes:
        writer.add(node, _is_in(node, computed))
    return with_nodes(graph, writer.nodes, writer.replacements)


# --- private -------------------------------------------------------------------------------------

# The real and the imaginary part of an operand; of a real one, the second is None.
_Parts: TypeAlias = tuple[Value, Value | None]
_Emit: TypeAlias = Callable[..., Value]


def _mul(emit: _Emit, a: _Parts, b: _Parts) -> tuple[Value, Value]:
    (ar, ai), (br, bi) = a, b
    if ai is None:
        return _mul(emit, b, a)
    if bi is None:
        return emit(aten.mul.Tensor, ar, br), emit(aten.mul.Tensor, ai, br)
    left = emit(aten.mul.Tensor, ar, br), emit(aten.mul.Tensor, ai, bi)
    right = emit(aten.mul.Tensor, ar, bi), emit(aten.mul.Tensor, ai, br)
    return emit(aten.sub.Tensor, *left), emit(aten.add.Tensor, *right)


def _neg(emit: _Emit, a: _Parts) -> tuple[Value, Value]:
    assert a[1] is not None
    return emit(aten.neg.default, a[0]), emit(aten.neg.default, a[1])


def _conj(emit: _Emit, a: _Parts) -> tuple[Value, Value]:
    assert a[1] is not None
    return a[0], emit(aten.neg.default, a[1])


def _sum(op: object) -> Callable[..., tuple[Value, Value]]:
    def combine(emit: _Emit, a: _Parts, b: _Parts) -> tuple[Value, Value]:
        assert a[1] is not None and b[1] is not None
        return emit(op, a[0], b[0]), emit(op, a[1], b[1])

    return combine


# Operator -> the parts of its result from those of its operands; those that take real ones as well.
_RULES: Mapping[str, Callable[..., tuple[Value, Value]]] = {
    "aten.mul.Tensor": _mul,
    "aten.add.Tensor": _sum(aten.add.Tensor),
    "aten.sub.Tensor": _sum(aten.sub.Tensor),
    "aten.neg.default": _neg,
    "aten._conj_physical.default": _conj,
}
_MIXED = frozenset({"aten.mul.Tensor"})


def _is_computed(node: Node, devices: Collection[str]) -> bool:
    """Whether the node's operator has a rule for its operands."""
    if str(node.op) not in _RULES or node.kwargs or node.outputs[0] is None:
        return False
    result = node.outputs[0].type
    if not isinstance(result, TensorType) or result.device.type not in devices:
        return False
    part = _PARTS.get(result.dtype)
    if part is None or not result.shape or not all(type(x) is Value for x in node.args):
        return False
    if not _is_row_major(result):
        return False
    types = [value.type for value in node.args]
    if not all(isinstance(t, TensorType) and t.device == result.device for t in types):
        return False
    allowed = {result.dtype, part} if str(node.op) in _MIXED else {result.dtype}
    return {t.dtype for t in types} <= allowed


def _worth_computing(graph: Graph, devices: Collection[str]) -> frozenset[Value]:
    """The results of operators that move no more memory as loops than as calls of ATen.

    Operators that read each other's results are one kernel. Counted are readings and writings of
    whole values: what broadcasts costs next to nothing.
    """
    pairs = {n.outputs[0] for n in graph.nodes if n.op is aten.view_as_complex.default}
    groups = _joined([node for node in graph.nodes if _is_computed(node, devices)])
    escaping, viewed = _readers(graph, groups)
    found: set[Value] = set()
    for nodes in {id(nodes): nodes for nodes in groups.values()}.values():
        results = {_result(node) for node in nodes}
        reads = [
            (value, node) for node in nodes for value in {*node.args} if _is_whole(value, node)
        ]
        outside = {value for value, _ in reads} - results
        copied = {v for v in outside - pairs if type_of(v).dtype.is_complex}
        loops = len(outside) + 2 * len(copied) + len(results & escaping)
        calls = len(nodes) + len(reads) + 2 * len(results & viewed)
        if loops <= calls:
            found |= results
    return frozenset(found)


def _joined(nodes: Sequence[Node]) -> dict[Value, list[Node]]:
    """Each operator's result -> the operators that are one kernel with it."""
    groups: dict[Value, list[Node]] = {}
    for node in nodes:
        mine = groups[_result(node)] = [node]
        for value in node.args:
            other = groups.get(value)
            if other is None or other is mine:
                continue
            small, mine = sorted((mine, other), key=len)
            mine += small
            groups.update({_result(member): mine for member in small})
    return groups


def _readers(graph: Graph, groups: Mapping[Value, object]) -> tuple[set[Value], set[Value]]:
    """What is read elsewhere; and what is read there as a pair by an operator, for which a complex
    result of ATen's would be copied."""
    ends = {output.value for output in graph.outputs}
    ends |= {mutation.value for mutation in graph.mutations}
    reads = {v: node for node in graph.nodes if not _is_in(node, groups) for v in operands(node)}
    views = {value for value, node in reads.items() if node.op is aten.view_as_real.default}
    return {*reads} | ends, {value for value in views if _result(reads[value]) in reads}


def _is_in(node: Node, groups: Container[Value | None]) -> bool:
    return len(node.outputs) == 1 and node.outputs[0] in groups


def _is_whole(value: Value, node: Node) -> bool:
    """Whether an operand is as large as the result."""
    return type_of(value).shape == type_of(_result(node)).shape


def _result(node: Node) -> Value:
    (result,) = node.outputs
    assert result is not None
    return result


@final
class _PairRewriter:
    """The nodes so far. pairs: complex values -> real tensors with a last dimension of two."""

    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Node] = []
        self.replacements: dict[Value, Value] = {}
        self._pairs: dict[Value, Value] = {}
        self._parts: dict[Value, _Parts] = {}
        self._numbers = fresh_numbers(graph)

    def add(self, node: Node, is_computed: bool) -> None:
        """The node, or what stands for it."""
        node = replace_operands(node, self.replacements)
        (result, *_) = node.outputs or (None,)
        if is_computed:
            assert result is not None
            self._compute(node, result)
            return
        if node.op is aten.view_as_real.default and result is not None:
            pair = self._pairs.get(node.args[0])
            if pair is not None and _layout(pair) == _layout(result):
                self.replacements[result] = pair
                return
        self.nodes.append(node)
        if node.op is aten.view_as_complex.default and result is not None:
            self._pairs[result] = node.args[0]

    def _compute(self, node: Node, result: Value) -> None:
        kind = type_of(result)
        like = replace(kind, dtype=_PARTS[kind.dtype])

        def emit(op: object, *operands: Value) -> Value:
            return self._call(op, operands, like, node)

        operands = [self._parts_of(value, node) for value in node.args]
        parts = _RULES[str(node.op)](emit, *operands)
        pair_type = _pair_type(kind)
        wide = [self._whole(part, like, node) for part in parts]
        pair = self._call(aten.stack.default, (wide, len(kind.shape)), pair_type, node)
        self._pairs[result] = pair
        self.nodes.append(Node(aten.view_as_complex.default, (pair,), (), (result,), node.origin))

    def _whole(self, part: Value, like: TensorType, near: Node) -> Value:
        """The part, as large as the result."""
        return part if type_of(part).shape == like.shape else self._expanded(part, like, near)

    def _expanded(self, part: Value, like: TensorType, near: Node) -> Value:
        kind = type_of(part)
        missing = len(like.shape) - len(kind.shape)
        stride = [0] * missing + [
            0 if constant_value(old) == 1 and constant_value(new) != 1 else step
            for old, new, step in zip(kind.shape, like.shape[missing:], kind.stride, strict=True)
        ]
        made = replace(kind, shape=like.shape, stride=tuple(stride))
        return self._call(aten.expand.default, (part, list(like.shape)), made, near)

    def _parts_of(self, value: Value, near: Node) -> _Parts:
        kind = type_of(value)
        if not kind.dtype.is_complex:
            return value, None
        found = self._parts.get(value)
        if found is None:
            pair = self._pair_of(value, near)
            like = type_of(pair)
            half = replace(like, shape=like.shape[:-1], stride=like.stride[:-1])
            dim = len(half.shape)
            first, second = (
                self._call(aten.select.int, (pair, dim, n), half, near) for n in (0, 1)
            )
            found = self._parts[value] = (first, second)
        return found

    def _pair_of(self, value: Value, near: Node) -> Value:
        found = self._pairs.get(value)
        if found is None:
            kind = _pair_type(type_of(value))
            found = self._call(aten.view_as_real.default, (value,), kind, near)
            self._pairs[value] = found
        return found

    def _call(self, op: Any, args: Sequence[object], kind: TensorType, near: Node) -> Value:
        made = Value(next(self._numbers), kind)
        self.nodes.append(Node(op, tuple(args), (), (made,), near.origin, near.grad_enabled))
        return made


def _pair_type(kind: TensorType) -> TensorType:
    stride = [_number(as_expr(step) * 2) for step in kind.stride]
    return replace(kind, dtype=_PARTS[kind.dtype], shape=(*kind.shape, 2), stride=(*stride, 1))


def _is_row_major(kind: TensorType) -> bool:
    step = as_expr(1)
    for size, stride in zip(reversed(kind.shape), reversed(kind.stride), strict=True):
        if as_expr(stride) != step:
            return False
        step = step * size
    return True


def _number(size: Expr) -> Size:
    constant = constant_value(size)
    return simplified(size) if constant is None else constant


def _layout(value: Value) -> tuple[object, ...]:
    kind = type_of(value)
    return kind.dtype, kind.shape, kind.stride, kind.device
