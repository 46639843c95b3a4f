"""Operators that fold dimensions: sums, extrema, their positions, norms and moments."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Reduce, Scalar
from braze.ir.kernels.scalars import apply, cast, compute_dtype, index, literal
from braze.ir.types import Size
from braze.lower.coordinates import Coordinate, Coordinates, axis_coordinates, make_axes, product
from braze.lower.formulas import divide, square, where
from braze.lower.lowering import OperatorCall, Readable
from braze.lower.operators.views import positive
from braze.lower.place import Stored
from braze.lower.rules import DONE, Body, Lowered, add_rule, rule

PointBody = Callable[[Coordinates], Scalar]


def normalized_dims(dim: Any, rank: int) -> tuple[int, ...]:
    """The dimensions to fold, sorted; None or nothing means all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(rank))
    given = dim if isinstance(dim, (list, tuple)) else [dim]
    return tuple(sorted(positive(d, rank) for d in given)) if rank else ()


def kept_shape(shape: Sequence[Size], dims: Sequence[int]) -> tuple[Size, ...]:
    """The shape with the folded dimensions at size one."""
    return tuple(1 if n in dims else size for n, size in enumerate(shape))


def fold(
    kind: str,
    body: PointBody,
    shape: Sequence[Size],
    dims: Sequence[int],
    keepdim: bool,
) -> Body:
    """A body that folds `body`, given over all of `shape`, along `dims`."""
    axes = make_axes("r", [shape[dim] for dim in dims])
    folded = dict(zip(dims, axis_coordinates(axes), strict=True))

    def reduced(at: Coordinates) -> Scalar:
        rest = iter(at)
        point: list[Coordinate] = []
        for n in range(len(shape)):
            if n in folded:
                point.append(folded[n])
                if keepdim:
                    next(rest)
            else:
                point.append(next(rest))
        inner = body(tuple(point))
        if not axes and kind not in ("argmax", "argmin"):
            return inner
        if not axes:
            return literal(0, torch.int64)
        dtype = torch.int64 if kind in ("argmax", "argmin") else inner.dtype
        return Reduce(kind, axes, inner, dtype)

    return reduced


def count(shape: Sequence[Size], dims: Sequence[int], dtype: torch.dtype) -> Scalar:
    """How many elements are folded into one, as a float."""
    return cast(index(product([shape[dim] for dim in dims])), dtype)


def over(
    call: OperatorCall, self: Readable, dim: object
) -> tuple[tuple[Size, ...], tuple[int, ...]]:
    """(shape, folded dimensions) of an operand."""
    shape = call.shape_of(self)
    return shape, normalized_dims(dim, len(shape))


# --- sums --------------------------------------------------------------------------------------


def _lower_fold(
    call: OperatorCall,
    self: Value,
    dim: object,
    keepdim: bool,
    kind: str,
    formula: Callable[[Scalar], Scalar] = lambda x: x,
) -> Body:
    shape, dims = over(call, self, dim)
    dtype = call.output().dtype
    return fold(kind, lambda at: formula(call.read_as(self, at, dtype)), shape, dims, keepdim)


@rule("sum", "sum.dim_IntList", exact=False)
def lower_sum(
    call: OperatorCall,
    self: Value,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Lowered:
    return _lower_fold(call, self, dim, keepdim, "sum")


@rule("nansum", exact=False)
def lower_nansum(
    call: OperatorCall,
    self: Value,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Lowered:
    def formula(x: Scalar) -> Scalar:
        return where(apply("isnan", x), 0.0, x) if x.dtype.is_floating_point else x

    return _lower_fold(call, self, dim, keepdim, "sum", formula)


@rule("prod", exact=False)
def lower_prod(call: OperatorCall, self: Value, *, dtype: object = None) -> Lowered:
    return _lower_fold(call, self, None, False, "prod")


@rule("prod.dim_int", exact=False)
def lower_prod_dim(
    call: OperatorCall, self: Value, dim: int, keepdim: bool = False, *, dtype: object = None
) -> Lowered:
    return _lower_fold(call, self, dim, keepdim, "prod")


@rule("mean", "mean.dim", exact=False)
def lower_mean(
    call: OperatorCall,
    self: Value,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Lowered:
    shape, dims = over(call, self, dim)
    total = _lower_fold(call, self, dim, keepdim, "sum")
    return lambda at: divide(total(at), count(shape, dims, call.compute_dtype))


@rule("count_nonzero.dim_IntList", "count_nonzero")
def lower_count_nonzero(call: OperatorCall, self: Value, dim: object = None) -> Lowered:
    shape, dims = over(call, self, dim)

    def body(at: Coordinates) -> Scalar:
        return cast(call.read(self, at, torch.bool), torch.int64)

    return fold("sum", body, shape, dims, False)


@rule("any", "any.dim", "any.dims")
def lower_any(
    call: OperatorCall, self: Value, dim: object = None, keepdim: bool = False
) -> Lowered:
    shape, dims = over(call, self, dim)
    return fold("any", lambda at: call.read(self, at, torch.bool), shape, dims, keepdim)


@rule("all", "all.dim", "all.dims")
def lower_all(
    call: OperatorCall, self: Value, dim: object = None, keepdim: bool = False
) -> Lowered:
    shape, dims = over(call, self, dim)
    return fold("all", lambda at: call.read(self, at, torch.bool), shape, dims, keepdim)


@rule("trace", exact=False)
def lower_trace(call: OperatorCall, self: Value) -> Lowered:
    rows, columns = call.shape_of(self)
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    dtype = call.output().dtype
    return fold(
        "sum",
        lambda at: call.read_as(self, (at[0], at[0]), dtype),
        (min(rows, columns),),
        (0,),
        False,
    )


# --- extrema -----------------------------------------------------------------------------------

_LOGICAL_FOLDS = {"max": "any", "min": "all"}


def extremum(call: OperatorCall, self: Readable, dim: object, keepdim: bool, kind: str) -> Body:
    """The largest or smallest element, NaN first."""
    shape, dims = over(call, self, dim)

    def body(at: Coordinates) -> Scalar:
        scalar = call.lowering.read(self, at)
        return cast(scalar, compute_dtype(scalar.dtype))

    def reduced(at: Coordinates) -> Scalar:
        scalar = fold(kind, body, shape, dims, keepdim)(at)
        if isinstance(scalar, Reduce) and scalar.dtype == torch.bool:
            return Reduce(_LOGICAL_FOLDS[kind], scalar.axes, scalar.body, torch.bool)
        return scalar

    return reduced


def position(call: OperatorCall, self: Value, dim: object, keepdim: bool, kind: str) -> Body:
    """Where the first extremum is, counted row-major over the folded dimensions."""
    shape, dims = over(call, self, dim)

    def body(at: Coordinates) -> Scalar:
        scalar = call.lowering.read(self, at)
        wide = torch.uint8 if scalar.dtype == torch.bool else compute_dtype(scalar.dtype)
        return cast(scalar, wide)

    return fold(f"arg{kind}", body, shape, dims, keepdim)


def _register_extrema() -> None:
    def values(kind: str) -> Any:
        def lower(
            call: OperatorCall, self: Value, dim: object = None, keepdim: bool = False
        ) -> Lowered:
            return extremum(call, self, dim, keepdim, kind)

        return lower

    def positions(kind: str) -> Any:
        def lower(
            call: OperatorCall, self: Value, dim: object = None, keepdim: bool = False
        ) -> Lowered:
            return position(call, self, dim, keepdim, kind)

        return lower

    def both(kind: str) -> Any:
        def lower(call: OperatorCall, self: Value, dim: int, keepdim: bool = False) -> Lowered:
            call.result(0, extremum(call, self, dim, keepdim, kind))
            if call.is_used(1):
                call.result(1, position(call, self, dim, keepdim, kind))
            return DONE

        return lower

    for kind in ("max", "min"):
        add_rule(f"a{kind}", values(kind))
        add_rule(kind, values(kind))
        add_rule(f"arg{kind}", positions(kind))
        add_rule(f"{kind}.dim", both(kind))


_register_extrema()


@rule("aminmax")
def lower_aminmax(
    call: OperatorCall, self: Value, *, dim: object = None, keepdim: bool = False
) -> Lowered:
    call.result(0, extremum(call, self, dim, keepdim, "min"))
    call.result(1, extremum(call, self, dim, keepdim, "max"))
    return DONE


# --- norms -------------------------------------------------------------------------------------


def _norm_parts(order: float) -> tuple[str, Callable[[Scalar], Scalar], Callable[[Scalar], Scalar]]:
    """(fold, formula of an element, formula of the folded) of a vector norm."""

    def absolute(x: Scalar) -> Scalar:
        return apply("abs", x)

    def same(x: Scalar) -> Scalar:
        return x

    if order == math.inf:
        return "max", absolute, same
    if order == -math.inf:
        return "min", absolute, same
    if order == 0:
        return "sum", lambda x: cast(apply("ne", x, 0.0), x.dtype), same
    if order == 1:
        return "sum", absolute, same
    if order == 2:
        return "sum", square, lambda x: apply("sqrt", x)
    return (
        "sum",
        lambda x: apply("pow", absolute(x), order),
        lambda x: apply("pow", x, 1.0 / order),
    )


@rule("linalg_vector_norm", exact=False)
def lower_vector_norm(
    call: OperatorCall,
    self: Value,
    ord: Any = 2,
    dim: object = None,
    keepdim: bool = False,
    *,
    dtype: object = None,
) -> Lowered:
    if isinstance(ord, Value):
        return None
    kind, inner, outer = _norm_parts(float(ord))
    total = _lower_fold(call, self, dim, keepdim, kind, inner)
    return lambda at: outer(total(at))


@rule("norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype", exact=False)
def lower_norm(
    call: OperatorCall,
    self: Value,
    p: object,
    dim: object = None,
    keepdim: bool = False,
    **_: object,
) -> Lowered:
    return lower_vector_norm(call, self, 2 if p is None else p, dim, keepdim)


@rule("norm.Scalar", exact=False)
def lower_norm_all(call: OperatorCall, self: Value, p: object = 2) -> Lowered:
    return lower_vector_norm(call, self, p)


@rule("logsumexp", exact=False)
def lower_logsumexp(call: OperatorCall, self: Value, dim: object, keepdim: bool = False) -> Lowered:
    shape, dims = over(call, self, dim)
    dtype = call.compute_dtype

    def read(at: Coordinates) -> Scalar:
        return call.read_as(self, at, call.output().dtype)

    highest = call.temporary(dtype, kept_shape(shape, dims), fold("max", read, shape, dims, True))

    def shift(at: Coordinates) -> Scalar:
        high = call.read(highest, call.broadcast(highest, at))
        return where(apply("isinf", high), 0.0, high)

    def small(at: Coordinates) -> Scalar:
        return apply("exp", apply("sub", read(at), shift(at)))

    total = call.temporary(dtype, kept_shape(shape, dims), fold("sum", small, shape, dims, True))

    def body(at: Coordinates) -> Scalar:
        point = at if keepdim else _with_kept_dims(at, dims, len(shape))
        return apply("add", apply("log", call.read(total, point)), shift(point))

    return body


def _with_kept_dims(at: Coordinates, dims: Sequence[int], rank: int) -> Coordinates:
    rest = iter(at)
    zero = axis_coordinates(make_axes("i", [1]))[0]
    return tuple(zero if n in dims else next(rest) for n in range(rank))


# --- moments -----------------------------------------------------------------------------------


def mean_of(
    call: OperatorCall, read: PointBody, shape: Sequence[Size], dims: Sequence[int], dtype: Any
) -> Stored:
    """The mean along `dims`, dimensions kept, as a buffer of `dtype`."""

    def body(at: Coordinates) -> Scalar:
        return divide(fold("sum", read, shape, dims, True)(at), count(shape, dims, dtype))

    return call.temporary(dtype, kept_shape(shape, dims), body)


def squared_deviation(
    call: OperatorCall, read: PointBody, mean: Stored, shape: Sequence[Size], dims: Sequence[int]
) -> Callable[[bool], Body]:
    """The sum of (x - mean)^2 along `dims`: accurate, at the price of a second pass."""

    def difference(at: Coordinates) -> Scalar:
        return square(apply("sub", read(at), call.read(mean, call.broadcast(mean, at))))

    return lambda keepdim: fold("sum", difference, shape, dims, keepdim)


def _variance(
    call: OperatorCall, self: Value, dim: object, correction: Any, keepdim: bool, root: bool
) -> tuple[Body, Stored]:
    shape, dims = over(call, self, dim)
    dtype = call.compute_dtype

    def read(at: Coordinates) -> Scalar:
        return call.read_as(self, at, call.output().dtype)

    mean = mean_of(call, read, shape, dims, dtype)
    total = squared_deviation(call, read, mean, shape, dims)(keepdim)
    removed = 1.0 if correction is None else float(correction)
    number = product([shape[dim] for dim in dims])
    freedom: Any = (
        max(number - removed, 0.0)
        if isinstance(number, int)
        else apply("maximum", apply("sub", count(shape, dims, dtype), removed), 0.0)
    )

    def body(at: Coordinates) -> Scalar:
        variance = divide(total(at), freedom)
        return apply("sqrt", variance) if root else variance

    return body, mean


def _register_moments() -> None:
    def spread(root: bool) -> Any:
        def lower(
            call: OperatorCall,
            self: Value,
            dim: object = None,
            *,
            correction: object = None,
            keepdim: bool = False,
        ) -> Lowered:
            return _variance(call, self, dim, correction, keepdim, root)[0]

        return lower

    def spread_and_mean(root: bool) -> Any:
        def lower(
            call: OperatorCall,
            self: Value,
            dim: object = None,
            *,
            correction: object = None,
            keepdim: bool = False,
        ) -> Lowered:
            body, mean = _variance(call, self, dim, correction, keepdim, root)
            shape, dims = over(call, self, dim)
            call.result(0, body)
            call.result(
                1,
                lambda at: call.read(
                    mean, at if keepdim else _with_kept_dims(at, dims, len(shape))
                ),
            )
            return DONE

        return lower

    for name, root in (("var", False), ("std", True)):
        add_rule(f"{name}.correction", spread(root), exact=False)
        add_rule(f"{name}_mean.correction", spread_and_mean(root), exact=False)


_register_moments()
