"""The scores of an attention: the condition outside which they are hidden, and what is under it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from braze.ir.kernels.loops import Apply, Guarded, Index, Literal, Load, Scalar
from braze.ir.kernels.scalars import rebuild, replace_children, walk
from braze.ir.kernels.schedule import HEAVY_OPERATORS
from braze.shapes.expr import Expr, as_expr


def visible_where(score: Scalar) -> Scalar | None:
    """The condition outside which a score is -inf; None: there is no such, or it costs much."""
    if isinstance(score, Apply) and score.op == "where":
        condition, _, other = score.operands
    elif isinstance(score, Guarded):
        condition, other = score.condition, score.other
    else:
        return None
    is_hidden = isinstance(other, Literal) and other.value == -float("inf")
    heavy = any(isinstance(node, Apply) and node.op in HEAVY_OPERATORS for node in walk(condition))
    return condition if is_hidden and not heavy else None


def unmasked(score: Scalar) -> Scalar:
    """The score where it is visible; all of it where nothing is hidden."""
    if isinstance(score, Guarded):
        return score.value
    if isinstance(score, Apply) and score.op == "where":
        return score.operands[1]
    return score


def with_visible(score: Scalar, value: Scalar) -> Scalar:
    """The score with another value where it is visible."""
    if isinstance(score, Guarded):
        return Guarded(score.condition, value, score.other)
    assert isinstance(score, Apply) and score.op == "where"
    return Apply("where", (score.operands[0], value, score.operands[2]), score.dtype)


def factor_of(value: Scalar) -> tuple[Scalar, float]:
    """(x, c) of a product x * c, for x that is loaded and c above zero; else (value, 1)."""
    if isinstance(value, Apply) and value.op == "mul":
        one, other = value.operands
        if isinstance(one, Load) and isinstance(other, Literal) and other.value > 0:
            return one, float(other.value)
    return value, 1.0


def with_joined_indices(score: Scalar) -> Scalar:
    """The score with sums and differences of indices as one index each."""

    def joined(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        found = replace_children(node, below)
        if not (isinstance(found, Apply) and found.op in ("add", "sub", "neg")):
            return found
        exprs = [_index_of(operand) for operand in found.operands]
        if None in exprs or found.dtype != torch.int64:
            return found
        first, *others = [expr for expr in exprs if expr is not None]
        if not others:
            return Index(first * -1)
        return Index(first + others[0] if found.op == "add" else first - others[0])

    return rebuild(score, joined)


def _index_of(scalar: Scalar) -> Expr | None:
    if isinstance(scalar, Index) and scalar.dtype == torch.int64:
        return scalar.expr
    if isinstance(scalar, Literal) and scalar.dtype == torch.int64 and abs(scalar.value) < 2**31:
        return as_expr(int(scalar.value))
    return None
