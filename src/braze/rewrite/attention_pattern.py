"""Matches attention that a program writes out: a product, a softmax over rows, a product.

    %3 = bmm(%0, %1)                     # scores
    %4 = mul(%3, 0.125)
    %5 = masked_fill(%4, %2, -inf)   ->  Attention(query=%0, keys=%1, values=%7, scale=0.125,
    %6 = _softmax(%5, -1, False)                   masks=(Fill(%2, True, -inf),), result=%8)
    %8 = bmm(%6, %7)

Between the products may be scales, masks, casts and views. Views are not followed one by one
(`einsum` makes many, which undo each other): all that is computed with lies densely in memory, row
by row, so that the order of elements says which score is which.

Refused: dropout, scales that are tensors or are not positive, masks over more dimensions than batch
and heads. Scores or probabilities may be read by others, of which is said that they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, final

import torch

from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Value
from braze.ir.graphs.random_ops import is_random
from braze.ir.types import Size, TensorType
from braze.rewrite.editing import readers_of, seen_values, type_of
from braze.shapes.expr import Expr, as_expr, constant_value, simplified

_Sizes: TypeAlias = tuple[Size, ...]


@final
@frozen
class Fill:
    """Scores are `amount` where the mask is `where`. scores: the shape that they have there.
    flows: it was added to them, far below: gradients go through to the scores of a row of which all
    are so."""

    mask: Value
    where: bool
    amount: float
    scores: _Sizes
    flows: bool = False


@final
@frozen
class Added:
    """`factor` times a tensor is added to the scores. scores: the shape that they have there."""

    mask: Value
    factor: float
    scores: _Sizes


Mask: TypeAlias = Fill | Added

# Numbers below leave nothing of a score that they are added to (2^-24 of them is far more).
ABSORBING = -1e30


@final
@frozen(eq=False)
class Attention:
    """softmax(scale * query @ keys, masked) @ values, as a graph has it.

    query, keys, values: operands of the products: [n, length, width], [n, width, count] and
        [n, count, width of values], or without n.
    shape: what the scores are known as: (batch, heads, length, count); batch * heads is n.
    masks: in their order; scale: of the product, before any of them.
    nodes: all that it is made of; result: of the last one, a product or a view of it.
    is_shared: others read what is inside; then the result is the product's.
    """

    query: Value
    keys: Value
    values: Value
    shape: _Sizes
    scale: float
    masks: tuple[Mask, ...]
    softmax: Node
    nodes: tuple[Node, ...]
    result: Value
    is_shared: bool


@final
@frozen(eq=False)
class NearMiss:
    """A softmax between two products that stays as it is, and why."""

    softmax: Node
    reason: str


def find_attention(graph: Graph) -> Iterator[Attention | NearMiss]:
    """Every softmax whose probabilities a product reads, if its scores are a product's."""
    finder = _Finder(graph)
    for node in graph.nodes:
        if str(node.op) == "aten._softmax.default" and finder.feeds_product(node):
            found = finder.attention(node)
            if found is not None:
                yield NearMiss(node, found) if isinstance(found, str) else found


def number_of(value: Any, makers: Mapping[Value, Node], data: Mapping[Value, Any]) -> float | None:
    """The number that an argument is, or that a 0-dim tensor holds, where it is known."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, Value):
        return None
    if value in data:
        return float(data[value].item()) if data[value].numel() == 1 else None
    maker = makers.get(value)
    if maker is None or not isinstance(value.type, TensorType) or value.type.shape:
        return None
    if _name(maker) in _FULL_OF:
        return _FULL_OF[_name(maker)]
    place = {"aten.scalar_tensor.default": 0, "aten.full.default": 1}.get(str(maker.op))
    if place is None or isinstance(maker.args[place], Value):
        return None
    return float(maker.args[place]) if isinstance(maker.args[place], (int, float)) else None


# --- private -------------------------------------------------------------------------------------

# What may move or name elements otherwise, and gives all of them.
_VIEWS = frozenset(
    "view _unsafe_view _reshape_alias permute transpose.int t unsqueeze squeeze squeeze.dim "
    "squeeze.dims expand alias clone".split()
)
# What makes tensors of one number.
_FULL_OF: Mapping[str, float] = {"zeros": 0.0, "ones": 1.0}
# What may be on the way to a product beside them, so that it is said why it is none.
_NEARLY = frozenset({"_to_copy", "native_dropout", "mul.Tensor", "mul.Scalar", "div.Tensor"})
_PRODUCTS = frozenset({"aten.bmm.default", "aten.mm.default"})
_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@final
@frozen(eq=False)
class _Scores:
    """Scores on their way from the product to the softmax, and the nodes that made them."""

    query: Value
    keys: Value
    scale: float
    masks: tuple[Mask, ...]
    nodes: tuple[Node, ...]


# A text: why it is no attention, though a product is there. None: none is there.
_Found: TypeAlias = _Scores | str | None
_Rule: TypeAlias = Callable[["_Finder", Node], _Found]


@final
class _Finder:
    """Looks at one graph. makers: value -> the node that makes it."""

    def __init__(self, graph: Graph) -> None:
        self.makers = {v: node for node in graph.nodes for v in node.outputs if v is not None}
        self.data = {constant.value: constant.tensor for constant in graph.constants}
        self._readers = readers_of(graph)
        self._seen = seen_values(graph)

    def feeds_product(self, softmax: Node) -> bool:
        """Whether a product reads the probabilities as its first operand."""
        waiting = [softmax.outputs[0]]
        while waiting:
            value = waiting.pop()
            for node in self._readers.get(value, ()) if value is not None else ():
                if str(node.op) in _PRODUCTS:
                    return True
                if _name(node) in _VIEWS or _name(node) in _NEARLY:
                    waiting += node.outputs[:1]
        return False

    def attention(self, softmax: Node) -> Attention | str | None:
        """The attention around a softmax; a text: why it stays; None: its scores are no product."""
        (probabilities,) = softmax.outputs
        assert probabilities is not None
        scores = self.scores(softmax.args[0])
        if not isinstance(scores, _Scores):
            return scores
        kind = type_of(probabilities)
        if not _is_along_rows(kind, softmax.args[1]) or not _is_dense(kind):
            return "the softmax is not over rows"
        if not _is_dense(type_of(softmax.args[0])):
            return "its scores lie in another order"
        below = self._below(probabilities)
        if isinstance(below, str):
            return below
        (*views, product), operand = below
        query, values = type_of(scores.query), type_of(product.args[1])
        count = values.shape[-2]
        if not (_same(operand.shape[-1], count) and _same(operand.shape[-2], query.shape[-2])):
            return "its probabilities lie in another order"
        return self._whole(scores, softmax, (*views, product), values)

    def _whole(
        self, scores: _Scores, softmax: Node, below: tuple[Node, ...], values: TensorType
    ) -> Attention | str:
        query, product = type_of(scores.query), below[-1]
        (result,) = product.outputs
        assert result is not None
        if not query.dtype == type_of(scores.keys).dtype == values.dtype == type_of(result).dtype:
            return "its products are of several dtypes"
        rows = (query.shape[-2], values.shape[-2])
        lead = self._lead(scores, query, rows, (*scores.nodes, softmax, *below))
        if isinstance(lead, str):
            return lead
        nodes = (*scores.nodes, softmax, *below)
        if len({node.grad_enabled for node in nodes}) > 1:
            return "gradients go through a part of it only"
        shape = (*lead, *rows)
        inside = {value for node in nodes[:-1] for value in node.outputs if value is not None}
        is_shared = any(self._is_shared(value) for value in inside)
        view = self._only_view(result, (*lead, rows[0], values.shape[-1]))
        if view is not None and not is_shared:
            nodes, result = (*nodes, view), view.outputs[0]
        assert result is not None
        return Attention(
            query=scores.query,
            keys=scores.keys,
            values=product.args[1],
            shape=shape,
            scale=scores.scale,
            masks=self._as_fill(scores.masks),
            softmax=softmax,
            nodes=nodes,
            result=result,
            is_shared=is_shared,
        )

    def _as_fill(self, masks: tuple[Mask, ...]) -> tuple[Mask, ...]:
        """The only mask, if it adds 0 or a number beside which no score counts, as one that fills
        with that."""
        added = masks[0] if len(masks) == 1 else None
        if not isinstance(added, Added):
            return masks
        node = self.makers.get(added.mask)
        while node is not None and _name(node) in ("alias", "detach", "expand"):
            node = self.makers.get(node.args[0])
        if node is None or _name(node) != "where.self":
            return masks
        condition, first, second = node.args
        one, other = self.number(first), self.number(second)
        if one is None or other is None or 0 not in (one, other):
            return masks
        amount = added.factor * (one + other)
        least = torch.finfo(type_of(added.mask).dtype).min
        if not (amount == -math.inf or least <= amount <= ABSORBING):
            return masks
        return (Fill(condition, other == 0, amount, added.scores, flows=True),)

    def _is_shared(self, value: Value) -> bool:
        return value in self._seen or len(self._readers.get(value, ())) != 1

    def _lead(
        self, scores: _Scores, query: TensorType, rows: _Sizes, nodes: Sequence[Node]
    ) -> tuple[Size, Size] | str:
        """Batch and heads, as the program names them where it masks or else anywhere."""
        count = _product_of(query.shape[:-2])
        named = [mask.scores for mask in scores.masks]
        if any(not _ends_in(shape, rows) or len(shape) > 4 for shape in named):
            return "its masks have more dimensions than batch and heads"
        leads = {shape[:2] for shape in named if len(shape) == 4}
        if len(leads) > 1:
            return "its masks see batch and heads in several ways"
        if leads:
            return leads.pop()
        for value in (value for node in nodes for value in node.outputs[:1]):
            shape = () if value is None else type_of(value).shape
            if len(shape) == 4 and _ends_in(shape, rows):
                return shape[:2]
        return (query.shape[0] if len(query.shape) == 3 else simplified(count), 1)

    def _only_view(self, value: Value, shape: _Sizes) -> Node | None:
        """The only reader of a product, if it sees the heads in it."""
        readers = self._readers.get(value, ())
        if value in self._seen or len(readers) != 1:
            return None
        (node,) = readers
        is_view = _name(node) in ("view", "_unsafe_view")
        return node if is_view and _all_same(type_of(node.outputs[0]).shape, shape) else None

    # --- from the probabilities down to a product -----------------------------------------------

    def _below(self, value: Value) -> tuple[tuple[Node, ...], TensorType] | str:
        """The nodes from the probabilities to the product of them, and its operand's type. Of
        several readers it is the first that leads there: a backward comes later."""
        reasons = []
        for node in self._readers.get(value, ()):
            result = node.outputs[0] if node.outputs else None
            if str(node.op) in _PRODUCTS:
                is_first = node.args[0] is value and node.args[1] is not value
                if is_first and _is_dense(type_of(value)):
                    return (node,), type_of(value)
                reasons.append("its probabilities lie in another order")
            elif is_random(node.op):
                reasons.append("its probabilities are dropped at random")
            elif result is not None and (_name(node) in _VIEWS or _is_cast(node)):
                if not _same(_count(value), _count(result)):
                    return "a part of its probabilities is read"
                found = self._below(result)
                if not isinstance(found, str):
                    return (node, *found[0]), found[1]
                reasons.append(found)
            else:
                reasons.append(f"{node.op} is between its probabilities and the product")
        return reasons[0] if reasons else "its probabilities are read by no product"

    # --- from the softmax up to a product -------------------------------------------------------

    def scores(self, value: Any) -> _Found:
        """What a value is of a product of matrices."""
        node = self.makers.get(value)
        rule = None if node is None else _RULES.get(_name(node))
        if node is None or rule is None:
            return None
        found = rule(self, node)
        if not isinstance(found, _Scores):
            return found
        return replace(found, nodes=(*found.nodes, node))

    def scores_in(self, node: Node, value: object) -> _Found:
        """What an operand of a pointwise operator is of a product, if the result is as large."""
        found = self.scores(value) if isinstance(value, Value) else None
        if not isinstance(found, _Scores):
            return found
        result = node.outputs[0]
        assert result is not None
        if not _all_same(type_of(value).shape, type_of(result).shape):
            return "a mask makes more scores of one"
        if not (_is_dense(type_of(value)) and _is_dense(type_of(result))):
            return "its scores lie in another order"
        return found

    def number(self, value: object) -> float | None:
        """The number that an argument is, where it is known."""
        return number_of(value, self.makers, self.data)


def _product(finder: _Finder, node: Node) -> _Found:
    first, second = node.args[:2]
    if type_of(first).dtype not in _FLOATS:
        return "its products are of another dtype"
    return _Scores(first, second, 1.0, (), ())


def _product_and_sum(finder: _Finder, node: Node) -> _Found:
    added, first, second = node.args[:3]
    options = {"beta": 1, "alpha": 1, **dict(node.kwargs)}
    beta, alpha = finder.number(options["beta"]), finder.number(options["alpha"])
    if beta is None or alpha is None or not _is_scale(alpha):
        return "its scale is no positive number"
    shape = type_of(node.outputs[0]).shape
    if beta == 0:
        return _Scores(first, second, alpha, (), ())
    return _Scores(first, second, alpha, (Added(added, beta, shape),), ())


def _view(finder: _Finder, node: Node) -> _Found:
    found, result = finder.scores(node.args[0]), node.outputs[0]
    if isinstance(found, _Scores) and not _same(_count(node.args[0]), _count(result)):
        return "a part of its scores is read"
    return found


def _cast(finder: _Finder, node: Node) -> _Found:
    found = finder.scores(node.args[0])
    if isinstance(found, _Scores) and not _is_cast(node):
        return "its scores are cast otherwise than to a float"
    return found


def _scale(inverse: bool) -> _Rule:
    def rule(finder: _Finder, node: Node) -> _Found:
        sides = node.args[:1] if inverse else node.args[:2]
        for value, other in zip(sides, (*node.args[1:2], *node.args[:1])):
            found = finder.scores_in(node, value)
            if not isinstance(found, _Scores):
                if found is not None:
                    return found
                continue
            factor = finder.number(other)
            if factor is None or node.kwargs or len(node.args) > 2 or not _is_scale(factor):
                return "its scale is no positive number"
            factor = 1 / factor if inverse else factor
            masks = tuple([_scaled(mask, factor) for mask in found.masks])
            return replace(found, scale=found.scale * factor, masks=masks)
        return None

    return rule


def _scaled(mask: Mask, factor: float) -> Mask:
    if isinstance(mask, Fill):
        return replace(mask, amount=mask.amount * factor)
    return replace(mask, factor=mask.factor * factor)


def _sum(sign: int) -> _Rule:
    def rule(finder: _Finder, node: Node) -> _Found:
        alpha = finder.number(dict(node.kwargs).get("alpha", 1))
        sides = [node.args[:2], node.args[1::-1]] if sign > 0 and alpha == 1 else [node.args[:2]]
        for value, other in sides:
            found = finder.scores_in(node, value)
            if isinstance(found, _Scores):
                if alpha is None:
                    return "its mask is added with an unknown factor"
                return _with_added(finder, node, found, other, sign * alpha)
            if found is not None:
                return found
        return None

    return rule


def _with_added(
    finder: _Finder, node: Node, found: _Scores, other: object, factor: float
) -> _Found:
    if not isinstance(other, Value):  # a number added to a whole row changes nothing
        number = finder.number(other)
        return found if number is not None and math.isfinite(number) else "a number is added to it"
    if not isinstance(other.type, TensorType) or not other.type.dtype.is_floating_point:
        return "what is added to its scores is no float"
    shape = type_of(node.outputs[0]).shape
    return replace(found, masks=(*found.masks, Added(other, factor, shape)))


def _masked_fill(finder: _Finder, node: Node) -> _Found:
    value, mask, amount = node.args[:3]
    return _filled(finder, node, finder.scores_in(node, value), (mask, True), amount)


def _where(finder: _Finder, node: Node) -> _Found:
    mask, first, second = node.args[:3]
    found = finder.scores_in(node, first)
    if found is not None:
        return _filled(finder, node, found, (mask, False), second)
    return _filled(finder, node, finder.scores_in(node, second), (mask, True), first)


def _filled(
    finder: _Finder, node: Node, found: _Found, mask: tuple[Value, bool], amount: object
) -> _Found:
    if not isinstance(found, _Scores):
        return found
    number = finder.number(amount)
    if number is None:
        return "what stands for masked scores is not known"
    shape = type_of(node.outputs[0]).shape
    return replace(found, masks=(*found.masks, Fill(*mask, number, shape)))


_RULES: Mapping[str, _Rule] = {
    "bmm": _product,
    "mm": _product,
    "baddbmm": _product_and_sum,
    **dict.fromkeys(_VIEWS, _view),
    "_to_copy": _cast,
    "mul.Tensor": _scale(False),
    "mul.Scalar": _scale(False),
    "div.Tensor": _scale(True),
    "div.Scalar": _scale(True),
    "add.Tensor": _sum(1),
    "sub.Tensor": _sum(-1),
    "masked_fill.Scalar": _masked_fill,
    "masked_fill.Tensor": _masked_fill,
    "where.self": _where,
}


def _is_scale(number: float) -> bool:
    """Whether kernels take it: they shift by the largest score before it is scaled."""
    return 0 < number < math.inf


def _is_cast(node: Node) -> bool:
    """Whether it only changes the dtype, from a float to a float."""
    value, result = node.args[0], node.outputs[0]
    if _name(node) != "_to_copy" or result is None:
        return False
    before, after = type_of(value), type_of(result)
    is_same = before.device == after.device and _all_same(before.stride, after.stride)
    return is_same and {before.dtype, after.dtype} <= {*_FLOATS}


def _is_along_rows(kind: TensorType, dim: int) -> bool:
    """Whether a dimension is the last that has more than one element."""
    place = dim % len(kind.shape)
    return all(constant_value(size) == 1 for size in kind.shape[place + 1 :])


def _name(node: Node) -> str:
    return str(node.op).removeprefix("aten.").removesuffix(".default")


def _same(a: Size, b: Size) -> bool:
    return as_expr(a) == as_expr(b)


def _all_same(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return len(a) == len(b) and all(map(_same, a, b))


def _ends_in(shape: Sequence[Size], rows: Sequence[Size]) -> bool:
    return _all_same(shape[-2:], rows)


def _product_of(sizes: Sequence[Size]) -> Expr:
    return math.prod(map(as_expr, sizes), start=as_expr(1))


def _count(value: object) -> Expr:
    return _product_of(type_of(value).shape)


def _is_dense(kind: TensorType) -> bool:
    """Whether elements follow each other in memory in the order of the dimensions."""
    step = as_expr(1)
    for size, stride in zip(reversed(kind.shape), reversed(kind.stride), strict=True):
        if constant_value(size) != 1 and as_expr(stride) != step:
            return False
        step = step * size
    return True
