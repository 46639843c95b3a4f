"""Constant propagation at sizes that are symbols: values that are the same all along a dimension.

    torch.full((s0,), True).all()            every element is True, whatever s0 is
    torch.eye(3).expand(s0, 3, 3)            along the first dimension all matrices are one

A value is known by a tensor that has size one along each such dimension (as an operand that is
broadcast), and its elements elsewhere. `evaluate` computes it with the operators that made the
value, from constants. What inputs, random numbers, or a size itself give is unknown.

Refused: operators of which it is not known how they treat such a dimension (sums, views that merge
dimensions, concatenations), and reductions where the dimension may be empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Value
from braze.ir.graphs.op_effects import has_effects
from braze.ir.types import TensorType
from braze.shapes.expr import Expr
from braze.shapes.facts import Relation
from braze.shapes.symbolic import SymbolicSize, plain_size

if TYPE_CHECKING:
    from braze.tracing.tracer import Tracer

# Elements that are computed while a program is captured: matrices of covariance.
_MOST_ELEMENTS = 1 << 14
_MOST_CALLS = 64
_Rule: TypeAlias = Callable[["_Evaluation", TensorType, list[Any], dict[str, Any]], Any]


def uniform_data(tracer: Tracer, value: Value) -> torch.Tensor | None:
    """The elements of a value that depends on constants alone, of size one along dimensions of
    which nothing else is known than that all elements are equal; None where it is unknown."""
    return _Evaluation(tracer).of(value)


# --- private ---------------------------------------------------------------------------------


class _DependsOnInputs(Exception):
    """The value depends on an input, or on a size, or is made by an operator without a rule."""


class _Evaluation:
    """What is known of the values that one value is made of."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._known: dict[Value, torch.Tensor | None] = {
            constant.value: constant.tensor for constant in tracer.constants
        }
        self._left = _MOST_CALLS

    def of(self, value: Value) -> torch.Tensor | None:
        """The elements of a value, or None."""
        if value not in self._known:
            self._known[value] = self._made(value)
        return self._known[value]

    def _made(self, value: Value) -> torch.Tensor | None:
        kind = value.type
        if not isinstance(kind, TensorType) or kind.device.type != "cpu" or self._left == 0:
            return None
        call = self._tracer.recorder.maker(value)
        if call is None or has_effects(call[0]) or call[0] in _UNDEFINED:
            return None
        self._left -= 1
        op, args, kwargs, outputs = call[:4]
        try:
            result = self._applied(op, kind, list(args), dict(kwargs))
        except _DependsOnInputs:
            return None
        results = result if isinstance(result, (tuple, list)) else [result]
        found: torch.Tensor = results[outputs.index(value)]
        return found if _fits(found, kind) else None

    def _applied(
        self, op: Any, kind: TensorType, args: list[object], kwargs: dict[str, object]
    ) -> Any:
        fill = _FILLS.get(op)
        if fill is not None:
            number = fill if not callable(fill) else fill(args, kwargs)
            if isinstance(number, (torch.SymInt, torch.SymFloat, SymbolicSize, Expr, Value)):
                raise _DependsOnInputs
            return torch.full((1,) * len(kind.shape), number, dtype=kind.dtype, device="cpu")
        rule = _RULES.get(op)
        if rule is not None:
            return rule(self, kind, args, kwargs)
        given = [self.bound(argument) for argument in args]
        named = {name: self.bound(argument) for name, argument in kwargs.items()}
        is_pointwise = torch.Tag.pointwise in op.tags and bool(given)
        if not is_pointwise:
            if not _is_small(kind):
                raise _DependsOnInputs
            given = [self._whole(argument) for argument in args]
        return op(*given, **named)

    def bound(self, argument: object) -> Any:
        """An argument with values in place of names. Raises _DependsOnInputs."""
        if isinstance(argument, Value):
            found = self.of(argument)
            if found is None:
                raise _DependsOnInputs
            return found
        if isinstance(argument, (tuple, list)):
            return [self.bound(item) for item in argument]
        if isinstance(argument, (torch.SymInt, torch.SymFloat, SymbolicSize, Expr)):
            raise _DependsOnInputs
        return argument

    def _whole(self, argument: object) -> Any:
        """The same with all elements of each value."""
        if isinstance(argument, (tuple, list)):
            return [self._whole(item) for item in argument]
        found = self.bound(argument)
        if not isinstance(argument, Value):
            return found
        assert isinstance(argument.type, TensorType)
        if not _is_small(argument.type):
            raise _DependsOnInputs
        return found.expand([int(size) for size in argument.type.shape])

    def compact(self, value: Value) -> tuple[int, ...]:
        """The dimensions along which a known value is held as one element."""
        found, kind = self.bound(value), value.type
        assert isinstance(kind, TensorType)
        pairs = enumerate(zip(found.shape, kind.shape, strict=True))
        return tuple([dim for dim, (held, size) in pairs if held == 1 and not _is_one(size)])

    def never_empty(self, value: Value, dim: int) -> bool:
        """Whether a dimension has an element at every size that the program is compiled for."""
        assert isinstance(value.type, TensorType)
        size = plain_size(value.type.shape[dim])
        if isinstance(size, int):
            return size > 0
        facts = self._tracer.facts
        expr = size.expr if isinstance(size, SymbolicSize) else size
        return facts is not None and facts.follows(Relation(expr - 1, ">=")) is True


def _is_one(size: object) -> bool:
    return isinstance(size, int) and size == 1


def _is_small(kind: TensorType) -> bool:
    sizes = [size for size in kind.shape if isinstance(size, int)]
    return len(sizes) == len(kind.shape) and math.prod(sizes) <= _MOST_ELEMENTS


def _fits(found: torch.Tensor, kind: TensorType) -> bool:
    """Whether each dimension is held whole, or as one element."""
    return (
        found.dtype is kind.dtype
        and found.numel() <= _MOST_ELEMENTS
        and found.dim() == len(kind.shape)
        and all(
            held == 1 or (isinstance(size, int) and held == size)
            for held, size in zip(found.shape, kind.shape, strict=True)
        )
    )


def _expand(
    known: _Evaluation, kind: TensorType, args: list[object], kwargs: dict[str, object]
) -> Any:
    found = known.bound(args[0])
    return found.reshape((1,) * (len(kind.shape) - found.dim()) + tuple(found.shape))


def _select(
    known: _Evaluation, kind: TensorType, args: list[Any], kwargs: dict[str, object]
) -> object:
    found, dim = known.bound(args[0]), args[1] if len(args) > 1 else 0
    index = args[2] if len(args) > 2 else 0
    if dim % found.dim() in known.compact(args[0]):
        index = 0
    return aten.select.int(found, known.bound(dim), known.bound(index))


def _rearranged(op: Any) -> _Rule:
    """An operator that moves dimensions, or adds one of size one."""

    def rule(
        known: _Evaluation, kind: TensorType, args: list[object], kwargs: dict[str, Any]
    ) -> object:
        given = [known.bound(argument) for argument in args]
        return op(*given, **{name: known.bound(one) for name, one in kwargs.items()})

    return rule


def _of_matrices(op: Any) -> _Rule:
    """An operator of each matrix of a batch, whose rows and columns are at hand."""

    def rule(
        known: _Evaluation, kind: TensorType, args: list[Any], kwargs: dict[str, Any]
    ) -> object:
        found = known.bound(args[0])
        if any(dim >= found.dim() - 2 for dim in known.compact(args[0])):
            raise _DependsOnInputs
        rest = [known.bound(argument) for argument in args[1:]]
        return op(found, *rest, **{name: known.bound(one) for name, one in kwargs.items()})

    return rule


def _idempotent(op: Any, absorbing: bool | None) -> _Rule:
    """A reduction for which an element counts once, however often it is there. absorbing: what it
    gives of no element."""

    def rule(
        known: _Evaluation, kind: TensorType, args: list[Any], kwargs: dict[str, Any]
    ) -> object:
        found = known.bound(args[0])
        rest = [known.bound(argument) for argument in args[1:]]
        result = op(found, *rest, **{name: known.bound(one) for name, one in kwargs.items()})
        may_be_empty = [d for d in known.compact(args[0]) if not known.never_empty(args[0], d)]
        if may_be_empty and (absorbing is None or not bool((result == absorbing).all())):
            raise _DependsOnInputs
        return result

    return rule


def _filling(position: int, name: str) -> Callable[[list[object], dict[str, object]], object]:
    return lambda args, kwargs: args[position] if len(args) > position else kwargs[name]


# Operators whose elements are whatever the memory held.
_UNDEFINED = {
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
}
# What each element is: a number, or where it stands among the arguments.
_FILLS: dict[Any, Any] = {
    aten.full.default: _filling(1, "fill_value"),
    aten.full_like.default: _filling(1, "fill_value"),
    aten.new_full.default: _filling(2, "fill_value"),
    aten.scalar_tensor.default: _filling(0, "s"),
    aten.ones.default: 1,
    aten.ones_like.default: 1,
    aten.new_ones.default: 1,
    aten.fill.Scalar: _filling(1, "value"),
    aten.zeros.default: 0,
    aten.zeros_like.default: 0,
    aten.new_zeros.default: 0,
}
_RULES: dict[Any, _Rule] = {
    aten.expand.default: _expand,
    aten.select.int: _select,
    **{
        op: _rearranged(op)
        for op in (
            aten.permute.default,
            aten.transpose.int,
            aten.t.default,
            aten.unsqueeze.default,
            aten.clone.default,
            aten._to_copy.default,
            aten.alias.default,
            aten.detach.default,
        )
    },
    **{
        op: _of_matrices(op)
        for op in (
            aten.linalg_cholesky_ex.default,
            aten._linalg_eigh.default,
            aten.linalg_inv_ex.default,
            aten.tril.default,
            aten.triu.default,
        )
    },
    **{
        op: _idempotent(op, absorbing)
        for absorbing, group in {
            True: (aten.all.default, aten.all.dim, aten.all.dims, aten._is_all_true.default),
            False: (aten.any.default, aten.any.dim, aten.any.dims, aten._is_any_true.default),
            None: (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default),
        }.items()
        for op in group
    },
}
