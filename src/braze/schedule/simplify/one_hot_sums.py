"""Computes sums in which at most one point counts without a loop.

    t[i0, i1] = y[i0] == i1 and ok[i0] ? v[i0] : 0
    b[i0] = sum(r0 < 32000: t[i0, r0])
becomes
    t[i0, i1] = ...
    b[i0] = 0 <= y[i0] < 32000 and ok[i0] ? v[i0] : 0

The backward of a cross-entropy sums its gradient along the classes, and that is zero but for one of
them: 32,000 comparisons a row. What the sum then was is a number that a kernel over the same rows
computes on its way.

Left alone: sums along several axes, values that depend on the axis (weights of classes), and those
that may fault, which no element of an empty axis would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    Definition,
    Index,
    InRange,
    Literal,
    Load,
    Reduce,
    Scalar,
    Scatter,
    Statement,
)
from braze.ir.kernels.scalars import (
    apply,
    cast,
    index,
    literal,
    rebuild,
    replace_children,
    substitute_symbols,
    walk,
)
from braze.shapes.expr import Expr, Symbol, as_expr, symbols


def pick_one_hot(statements: Sequence[Statement]) -> list[Statement]:
    """The statements, such sums without loops; what they sum may be another one's values."""
    made = Counter(s.target for s in statements if isinstance(s, Definition))
    values = {
        s.target: s
        for s in statements
        if isinstance(s, Definition) and made[s.target] == 1 and _is_elementwise(s)
    }
    if not values and not any(_has_sum(s) for s in statements):
        return [*statements]
    return [_picked(s, values) if isinstance(s, Definition) else s for s in statements]


# --- private ---------------------------------------------------------------------------------


def _is_elementwise(definition: Definition) -> bool:
    """Whether a definition chooses or compares, each element at its own place."""
    places = tuple([as_expr(symbol) for symbol, _ in definition.axes])
    is_truth = definition.target.dtype == torch.bool
    is_chosen = isinstance(definition.body, Apply) and definition.body.op == "where"
    if not (is_truth or is_chosen) or definition.store != places:
        return False
    return not any(isinstance(node, (Reduce, Scatter)) for node in walk(definition.body))


def _has_sum(statement: Statement) -> bool:
    return isinstance(statement, Definition) and any(
        isinstance(node, Reduce) and node.kind == "sum" for node in walk(statement.body)
    )


def _picked(definition: Definition, values: Mapping[Buffer, Definition]) -> Definition:
    def changed(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        found = _without_loop(node, values) if isinstance(node, Reduce) else None
        return replace_children(node, below) if found is None else found

    if not _has_sum(definition):
        return definition
    body = rebuild(definition.body, changed)
    return definition if body is definition.body else replace(definition, body=body)


def _computed(body: Scalar, values: Mapping[Buffer, Definition]) -> Scalar:
    """What a load reads, in its place."""
    found = values.get(body.buffer) if isinstance(body, Load) else None
    if found is None or not isinstance(body, Load):
        return body
    places = [place for place in body.coordinates if isinstance(place, Expr)]
    if len(places) < len(body.coordinates):
        return body
    at = {symbol: place for (symbol, _), place in zip(found.axes, places, strict=True)}
    return substitute_symbols(found.body, at)


def _truth(condition: Scalar, values: Mapping[Buffer, Definition]) -> Scalar:
    """A condition with what its loads of truths read."""

    def changed(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        found = _computed(node, values) if node.dtype == torch.bool else node
        return replace_children(node, below) if found is node else below(found)

    return rebuild(condition, changed)


def _without_loop(fold: Reduce, values: Mapping[Buffer, Definition]) -> Scalar | None:
    body = _computed(fold.body, values)
    if fold.kind != "sum" or len(fold.axes) != 1 or not isinstance(body, Apply):
        return None
    if body.op != "where" or body.dtype != fold.dtype or not fold.dtype.is_floating_point:
        return None
    ((axis, size),) = fold.axes
    condition, value, other = body.operands
    if not (isinstance(other, Literal) and other.value == 0):
        return None
    terms = _terms(_truth(condition, values))
    places = [label for term in terms if (label := _label(term, axis)) is not None]
    rest = [term for term in terms if _label(term, axis) is None]
    if len(places) != 1 or any(_depends(term, axis) or _faults(term) for term in rest):
        return None
    if _depends(value, axis) or _faults(value) or _faults(places[0]):
        return None
    (label,) = places
    holds = apply("and", apply("ge", label, 0), apply("lt", label, index(as_expr(size))))
    for term in rest:
        holds = apply("and", holds, term)
    positive = apply("add", cast(value, fold.dtype), literal(0.0, fold.dtype))  # no zero below zero
    return apply("where", holds, positive, literal(0.0, fold.dtype))


def _terms(condition: Scalar) -> list[Scalar]:
    if isinstance(condition, Apply) and condition.op == "and" and condition.dtype == torch.bool:
        return [term for operand in condition.operands for term in _terms(operand)]
    return [condition]


def _label(term: Scalar, axis: Symbol) -> Scalar | None:
    """What a term compares the place along the axis with."""
    if not isinstance(term, Apply) or term.op != "eq":
        return None
    for one, other in (term.operands, term.operands[::-1]):
        is_place = isinstance(one, Index) and one.expr == as_expr(axis)
        if is_place and other.dtype == torch.int64 and not _depends(other, axis):
            return other
    return None


def _depends(scalar: Scalar, axis: Symbol) -> bool:
    return any(axis in symbols(expr) for node in walk(scalar) for expr in _expressions(node))


def _expressions(node: Scalar) -> list[Expr]:
    if isinstance(node, Index):
        return [node.expr]
    if isinstance(node, Load):
        return [place for place in node.coordinates if isinstance(place, Expr)]
    return []


def _faults(scalar: Scalar) -> bool:
    return any(isinstance(node, InRange) for node in walk(scalar))
