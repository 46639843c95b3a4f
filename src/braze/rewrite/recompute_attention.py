"""Lets the backward of attention compute scores again, from one number a row that is kept.

    forward:   %3 = bmm(%0, %1); %4 = tanh(%3); %5 = _softmax(%4, -1); %6 = bmm(%5, %2)
    backward:  %8 = bmm(%7, transpose(%2)); %9 = _softmax_backward_data(%8, %5, -1)
               %10 = tanh_backward(%9, %4); ...
becomes
    forward:   the same, and %11 = log(sum(exp(%4 - max(%4)))) + max(%4)
    backward:  %12 = bmm(%0, %1); %13 = tanh(%12); %14 = exp(%13 - %11)
               %8 = bmm(%7, transpose(%2)); %9 = %14 * (%8 - sum(%7 * %6))
               %10 = tanh_backward(%9, %13); ...

so that nothing as large as the scores is kept for the backward, and all that is made of them there
is pointwise: a kernel computes it tile by tile (FlashAttention-2, Dao 2023, section 3.1). The
function of the scores is any that has no fold; its derivative is the one that autograd traced.

Refused: scores of another dtype than float32; dropout; gradients of biases and of what else the
function reads; few scores; wide matrices; devices without such a kernel, and dtypes that it is slow
in.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import final

import torch

from braze.compat.torch.aten import aten
from braze.frozen import frozen
from braze.ir.graphs.graph import Argument, Node, Value, first_result, operands, replace_operands
from braze.ir.graphs.joint_graph import JointGraph, joint_as_graph
from braze.ir.types import Size, TensorType
from braze.rewrite.editing import at_hand, fresh_numbers, row_major, type_of
from braze.shapes.expr import as_expr, constant_value

_LOG = logging.getLogger("braze.fusion")


@final
@frozen
class WhereWorth:
    """Where kernels gain: on devices, for values of dtypes, from so many scores of a head on."""

    devices: frozenset[str] = frozenset({"cuda"})
    dtypes: frozenset[torch.dtype] = frozenset({torch.float16, torch.bfloat16})
    fewest: int = 256 * 256


WHERE_WORTH = WhereWorth()


def recompute_attention(joint: JointGraph, worth: WhereWorth = WHERE_WORTH) -> JointGraph:
    """The joint graph with scores of attention computed again in its backward."""
    softmaxes = [node for node in joint.backward if node.op is _SOFTMAX_BACKWARD]
    for node in softmaxes:
        found = _AttentionMatch(joint, node).attention(worth)
        if isinstance(found, str):
            _LOG.info("attention at %s: scores are kept for its backward: %s", node.origin, found)
        else:
            joint = _Rewriter(joint, found).joint()
            _LOG.info("attention at %s: scores are computed again in its backward", node.origin)
    return joint


# --- private -------------------------------------------------------------------------------------

_SOFTMAX_BACKWARD = aten._softmax_backward_data.default
_WIDEST = 256  # of queries and of values: as in `attention_kernel`
_SOFTMAXES = (aten._softmax.default, aten._safe_softmax.default)
_PRODUCT = aten.bmm.default
_SAME = frozenset({aten.detach.default, aten.alias.default})
# What keeps elements in their order.
_IN_ORDER = _SAME | {
    aten.view.default,
    aten._unsafe_view.default,
    aten.expand.default,
    aten._to_copy.default,
    aten.unsqueeze.default,
    aten.squeeze.dim,
}
_COPIES = _IN_ORDER | {aten.clone.default, aten.transpose.int, aten.permute.default}

_LOOKUPS = (aten.index.Tensor, aten.clone.default)
# What makes a tensor of one number, and where the number is among its arguments.
_NUMBERS = {aten.scalar_tensor.default: 0, aten.full.default: 1}


@final
@frozen(eq=False)
class _Attention:
    """softmax: of the forward; backward: its gradient's node; tangent, result: of the product of
    probabilities and values, [n, length, width]; inside: values as large as the scores, made of
    them, the scores, and copies of queries, keys and values that are multiplied."""

    softmax: Node
    backward: Node
    tangent: Value
    result: Value
    inside: frozenset[Value]


@final
class _AttentionMatch:
    """Looks up what is around one softmax's backward."""

    def __init__(self, joint: JointGraph, backward: Node) -> None:
        self._joint, self._backward = joint, backward
        nodes = (*joint.forward.nodes, *joint.backward)
        self._forward = joint.forward.nodes
        self._makers = {v: node for node in nodes for v in node.outputs if v is not None}

    def attention(self, worth: WhereWorth) -> _Attention | str:
        """What is around it; a text: why it stays as it is."""
        tangent, weights = self._backward.args[0], self._origin(self._backward.args[1], _SAME)
        softmax = self._makers.get(weights)
        if softmax is None or softmax.op not in _SOFTMAXES or softmax not in {*self._forward}:
            return "it has no softmax in the forward"
        kind = type_of(weights)
        if kind.device.type not in worth.devices:
            return "there is no kernel for its device"
        rank = len(kind.shape)
        if {kind.dtype, type_of(softmax.args[0]).dtype} != {torch.float32}:
            return "its scores are of another dtype"
        if (
            rank < 2
            or softmax.args[1] % rank != rank - 1
            or self._backward.args[2] % rank != rank - 1
        ):
            return "it is no softmax of rows"
        if math.prod(at_hand(size) for size in kind.shape[-2:]) < worth.fewest:
            return "it is small"
        found = self._between(softmax, weights, tangent)
        if isinstance(found, _Attention):
            if type_of(found.result).dtype not in worth.dtypes:
                return "its values are of another dtype"
            if not self._is_multiplied(self._backward.outputs[0]):
                return "its gradient is wanted for more than queries and keys"
        return found

    def _is_multiplied(self, gradient: Value | None) -> bool:
        """Whether nothing but products reads the gradient of scores, and what is made of it."""
        found, size = {gradient}, type_of(gradient).shape[-2:]
        for node in self._joint.backward:
            if node.op is _PRODUCT or not found & {*operands(node)}:
                continue
            known = torch.Tag.pointwise in node.op.tags or node.op in _COPIES
            turned = {tuple(size), tuple(size[::-1])}
            made = [value for value in node.outputs if value is not None]
            if not known or any(tuple(type_of(v).shape[-2:]) not in turned for v in made):
                return False
            found.update(made)
        return not found & {*self._joint.gradients}

    def _between(self, softmax: Node, weights: Value, tangent: Value) -> _Attention | str:
        """The products that scores come from and probabilities go to."""
        inside = self._inside(softmax)
        if isinstance(inside, str):
            return inside
        first = self._makers.get(self._weighed(tangent))
        if first is None or first.op is not _PRODUCT:
            return "its gradient is no product"
        values = self._origin(first.args[1], _SAME | {aten.transpose.int})
        products = [
            node
            for node in self._forward
            if node.op is _PRODUCT
            and self._weighed(node.args[0]) is weights
            and self._origin(node.args[1], _SAME) is values
            and _count(type_of(node.args[0]).shape) == _count(type_of(weights).shape)
        ]
        if len(products) != 1:
            return "its probabilities are not multiplied with values"
        (result,) = products[0].outputs
        assert result is not None
        if type_of(first.args[0]).shape != type_of(result).shape:
            return "its gradient is of another shape"
        factors = self._factors(inside)
        widths = [constant_value(type_of(v).shape[-1]) for v in (factors[0], result)]
        if any(width is None or width > _WIDEST for width in widths):
            return "its width is not known, or large"
        copied = inside | self._copies([*factors, values]) | self._beside(inside, softmax)
        return _Attention(softmax, self._backward, first.args[0], result, copied)

    def _factors(self, inside: frozenset[Value]) -> list[Value]:
        """The operands of the scores' product."""
        nodes = {self._makers[value] for value in inside}
        return [v for node in nodes if node.op is _PRODUCT for v in operands(node)]

    def _beside(self, inside: frozenset[Value], softmax: Node) -> frozenset[Value]:
        """What is computed for each query and key and not of scores: biases, masks; numbers."""
        above = [v for value in inside for v in operands(self._makers[value]) if v not in inside]
        found: set[Value] = set()
        size = type_of(softmax.args[0]).shape[-2:]
        while above:
            value = above.pop()
            node = self._makers.get(value)
            if value in found or node is None or not isinstance(value.type, TensorType):
                continue
            known = torch.Tag.pointwise in node.op.tags or node.op in (*_IN_ORDER, *_LOOKUPS)
            is_number = not value.type.shape and node.op in (*_NUMBERS, *_COPIES)
            if is_number or (known and tuple(value.type.shape[-2:]) == tuple(size)):
                found.add(value)
                above += operands(node)
        return frozenset(found)

    def _copies(self, values: Sequence[Value]) -> set[Value]:
        """Values and what they are copies of, up to inputs and to what is computed: a kernel reads
        that, and nobody needs the copies."""
        found: set[Value] = set()
        for value in values:
            while (node := self._makers.get(value)) is not None and node.op in _COPIES:
                found.add(value)
                value = node.args[0]
        return found

    def _inside(self, softmax: Node) -> frozenset[Value] | str:
        """What is made of the scores' product, as long as it is as large."""
        above, products = [softmax.args[0]], set()
        seen = {softmax.args[0]}
        size = _count(type_of(softmax.args[0]).shape)
        while above:
            node = self._makers.get(above.pop())
            if node is None or not _is_as_large(node, size):
                continue
            if node.op is _PRODUCT:
                products.add(node)
                continue
            fresh = [v for v in operands(node) if v not in seen]
            seen.update(fresh)
            above += fresh
        if len(products) != 1:
            return f"its scores are made of {len(products)} products"
        (product,) = products
        found = {*product.outputs} - {None}
        if type_of(product.outputs[0]).dtype != torch.float32:
            return "its scores are of another dtype"
        for node in self._forward:
            if node.op is _PRODUCT:
                continue
            known = torch.Tag.pointwise in node.op.tags or node.op in (*_IN_ORDER, *_SOFTMAXES)
            if known and found & {*operands(node)} and _is_as_large(node, size):
                found.add(node.outputs[0])
        return frozenset(v for v in found if v is not None)

    def _origin(self, value: Value, through: Collection[object]) -> Value:
        while (node := self._makers.get(value)) is not None and node.op in through:
            value = node.args[0]
        return value

    def _weighed(self, value: Value) -> Value:
        """Probabilities, or their gradient, before whole rows of them were set to zero."""
        while (node := self._makers.get(value)) is not None:
            if node.op in _IN_ORDER:
                value = node.args[0]
            elif node.op is aten.where.self and self._is_of_rows(node):
                value = node.args[2]
            else:
                break
        return value

    def _is_of_rows(self, node: Node) -> bool:
        """Whether a choice gives zero for some rows."""
        condition, zero, _ = node.args
        rows = type_of(condition).shape[-1:]
        maker = self._makers.get(zero)
        is_zero = maker is not None and maker.op in _NUMBERS and maker.args[_NUMBERS[maker.op]] == 0
        return is_zero and tuple(rows) == (1,)


@final
class _Rewriter:
    """Writes one attention's joint graph anew. again: values of the forward -> what stands for
    them in the backward."""

    def __init__(self, joint: JointGraph, attention: _Attention) -> None:
        self._joint, self._attention = joint, attention
        self._numbers = fresh_numbers(joint_as_graph(joint))
        self._makers = {v: n for n in joint.forward.nodes for v in n.outputs if v is not None}
        self._again: dict[Value, Value] = {}
        self._made: list[Node] = []

    def joint(self) -> JointGraph:
        kept = self._logarithms()
        softmax, forward = self._attention.softmax, self._joint.forward
        place = forward.nodes.index(softmax) + 1
        nodes = (*forward.nodes[:place], *self._made, *forward.nodes[place:])
        self._made = []
        scores = self._repeated(softmax.args[0])
        again = self._add(aten.exp.default, (self._add(aten.sub.Tensor, (scores, kept)),))
        self._again[first_result(softmax)] = again
        for node in self._joint.backward:
            for value in operands(node):
                self._repeated(value)
            node = replace_operands(node, self._again)
            self._made += (
                self._gradient(again) if node.outputs == self._backward.outputs else [node]
            )
        return replace(
            self._joint, forward=replace(forward, nodes=nodes), backward=tuple(self._made)
        )

    # --- private ---------------------------------------------------------------------------------

    @property
    def _backward(self) -> Node:
        return self._attention.backward

    def _logarithms(self) -> Value:
        """The logarithm of each row's sum of exponentials; where all scores are -inf, inf or no
        number, as the softmax has zeros there or none."""
        scores = self._attention.softmax.args[0]
        most = self._add(aten.amax.default, (scores, [-1], True))
        powers = self._add(aten.exp.default, (self._add(aten.sub.Tensor, (scores, most)),))
        sums = self._add(aten.sum.dim_IntList, (powers, [-1], True))
        found = self._add(aten.add.Tensor, (self._add(aten.log.default, (sums,)), most))
        if self._attention.softmax.op is aten._softmax.default:
            return found
        empty = self._add(aten.eq.Scalar, (most, -math.inf))
        return self._add(aten.masked_fill.Scalar, (found, empty, math.inf))

    def _repeated(self, value: Value) -> Value:
        """What stands for a value of the forward in the backward."""
        again, attention = self._again, self._attention
        if value in again or value not in attention.inside:
            return again.get(value, value)
        node = self._makers[value]
        for operand in operands(node):
            self._repeated(operand)
        (again[value],) = outputs = (Value(next(self._numbers), value.type),)
        self._made.append(replace(replace_operands(node, again), outputs=outputs))
        return again[value]

    def _gradient(self, weights: Value) -> list[Node]:
        """The softmax's gradient: each probability times what its gradient is above the mean, which
        is the product of the result and its gradient."""
        made, self._made = self._made, []
        tangent, attention = self._backward.args[0], self._attention
        factors = [self._wide(x) for x in (attention.tangent, attention.result)]
        sums = self._add(
            aten.sum.dim_IntList, (self._add(aten.mul.Tensor, tuple(factors)), [-1], True)
        )
        rows = (*type_of(tangent).shape[:-1], 1)
        if rows != tuple(type_of(sums).shape):
            sums = self._add(aten.view.default, (sums, list(rows)))
        above = self._add(aten.sub.Tensor, (tangent, sums))
        last = Node(aten.mul.Tensor, (weights, above), (), self._backward.outputs)
        found = [*self._made, replace(last, origin=self._backward.origin, grad_enabled=False)]
        self._made = made
        return found

    def _wide(self, value: Value) -> Value:
        if type_of(value).dtype == torch.float32:
            return value
        return self._add(aten._to_copy.default, (value,), (("dtype", torch.float32),))

    def _add(
        self,
        op: torch._ops.OpOverload,
        args: tuple[object, ...],
        kwargs: tuple[tuple[str, object], ...] = (),
    ) -> Value:
        """A further node's result."""
        value = Value(next(self._numbers), _type_of_call(op, args))
        origin = self._attention.softmax.origin
        self._made.append(Node(op, args, kwargs, (value,), origin, grad_enabled=False))
        return value


def _type_of_call(op: torch._ops.OpOverload, args: Sequence[Argument]) -> TensorType:
    """The type of a result of float32, but for comparisons, whose elements lie row by row."""
    given = [type_of(x) for x in args if isinstance(x, Value)]
    shape = tuple(max(given, key=lambda kind: at_hand(_count(kind.shape))).shape)
    if op in (aten.amax.default, aten.sum.dim_IntList):
        shape = (*shape[:-1], 1)
    if op is aten.view.default:
        shape = tuple(args[1])
    dtype = torch.bool if op is aten.eq.Scalar else torch.float32
    return TensorType(dtype, shape, row_major(shape), given[0].device)


def _is_as_large(node: Node, size: Size) -> bool:
    """Whether a node has one result, of so many elements."""
    kinds = [value.type for value in node.outputs if value is not None]
    return len(node.outputs) == 1 and any(
        isinstance(kind, TensorType) and _count(kind.shape) == size for kind in kinds
    )


def _count(shape: Sequence[Size]) -> Size:
    total = as_expr(1)
    for size in shape:
        total = total * as_expr(size)
    return total
