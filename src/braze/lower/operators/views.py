"""View operators: a map of coordinates, at no cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.ir.graphs.graph import Value
from braze.ir.types import Size
from braze.lower.coordinates import (
    Coordinate,
    CoordinateMap,
    Coordinates,
    address,
    minus,
    plus,
    product,
    ravel,
    times,
    unravel,
)
from braze.lower.lowering import OperatorCall
from braze.lower.rules import DONE, Lowered, Reinterpreted, View, add_rule, rule
from braze.shapes.expr import ZERO, Expr, as_expr, bounds, constant_value, modulo


def positive(dim: int, rank: int) -> int:
    """A dimension counted from the front; a rank of 0 counts as 1."""
    return dim + max(rank, 1) if dim < 0 else dim


def reshape_map(source: Sequence[Size], target: Sequence[Size]) -> CoordinateMap:
    """From coordinates in `target` to those in `source`, both shapes of as many elements: only
    the groups of dimensions that really merge or split are computed with."""
    if 0 in source:
        return lambda at: (ZERO,) * len(source)
    given, wanted = _not_one(target), _not_one(source)
    groups = _matching_groups(
        tuple([source[dim] for dim in wanted]), tuple([target[dim] for dim in given])
    )

    def index(at: Coordinates) -> Coordinates:
        coordinates = tuple([at[dim] for dim in given])
        found: list[Coordinate] = []
        for source_group, start, target_group in groups:
            inside = coordinates[start : start + len(target_group)]
            if source_group == target_group:
                found.extend(inside)
            else:
                found.extend(unravel(ravel(inside, target_group), source_group))
        places = dict(zip(wanted, found, strict=True))
        return tuple([places.get(dim, ZERO) for dim in range(len(source))])

    return index


def _not_one(shape: Sequence[Size]) -> list[int]:
    """The dimensions with more than one element, as far as that is known."""
    return [dim for dim, size in enumerate(shape) if constant_value(size) != 1]


def _matching_groups(
    source: tuple[Size, ...], target: tuple[Size, ...]
) -> list[tuple[tuple[Size, ...], int, tuple[Size, ...]]]:
    """Split both shapes into runs of equal products: (source run, start in target, target run)."""
    groups = []
    i = j = 0
    while i < len(source) or j < len(target):
        i_end, j_end = min(i + 1, len(source)), min(j + 1, len(target))
        left, right = product(source[i:i_end]), product(target[j:j_end])
        while left != right:
            if (_is_behind(left, right) and i_end < len(source)) or j_end == len(target):
                if i_end == len(source):
                    return [(source, 0, target)]
                i_end += 1
                left = product(source[i:i_end])
            else:
                j_end += 1
                right = product(target[j:j_end])
        groups.append((source[i:i_end], j, target[j:j_end]))
        i, j = i_end, j_end
    return groups


def _is_behind(product_of_one: Size, other: Size) -> bool:
    """Whether a run's product is to grow: of symbols, if the other's does not divide it."""
    if isinstance(product_of_one, int) and isinstance(other, int):
        return product_of_one < other
    return constant_value(modulo(product_of_one, other)) != 0


@rule("view", "_unsafe_view", "reshape", "_reshape_alias", any_dtype=True)
def lower_view(call: OperatorCall, self: Value, *_: object) -> Lowered:
    return View(self, reshape_map(call.shape_of(self), call.output().shape), is_strided=False)


for _name in ("view_copy", "_reshape_copy"):
    add_rule(
        _name,
        lambda call, self, *_: (
            lambda at: call.read(self, reshape_map(call.shape_of(self), call.output().shape)(at))
        ),
    )


@rule("alias", "detach", "lift_fresh", any_dtype=True)
def lower_alias(call: OperatorCall, self: Value) -> Lowered:
    return View(self, lambda at: at)


@rule("t", any_dtype=True)
def lower_t(call: OperatorCall, self: Value) -> Lowered:
    return View(self, lambda at: at[::-1])


@rule("transpose.int", any_dtype=True)
def lower_transpose(call: OperatorCall, self: Value, dim0: int, dim1: int) -> Lowered:
    rank = len(call.shape_of(self))
    first, second = positive(dim0, rank), positive(dim1, rank)

    def index(at: Coordinates) -> Coordinates:
        swapped = list(at)
        if swapped:
            swapped[first], swapped[second] = at[second], at[first]
        return tuple(swapped)

    return View(self, index)


@rule("permute", any_dtype=True)
def lower_permute(call: OperatorCall, self: Value, dims: Sequence[int]) -> Lowered:
    rank = len(call.shape_of(self))
    order = [positive(dim, rank) for dim in dims]
    places = [order.index(dim) for dim in range(rank)]
    return View(self, lambda at: tuple(at[place] for place in places))


@rule("expand", any_dtype=True)
def lower_expand(
    call: OperatorCall, self: Value, size: Sequence[Size], *, implicit: bool = False
) -> Lowered:
    return View(self, lambda at: call.broadcast(self, at))


@rule("unsqueeze", any_dtype=True)
def lower_unsqueeze(call: OperatorCall, self: Value, dim: int) -> Lowered:
    place = positive(dim, len(call.shape_of(self)) + 1)
    return View(self, lambda at: at[:place] + at[place + 1 :])


@rule("squeeze", any_dtype=True)
def lower_squeeze(call: OperatorCall, self: Value) -> Lowered:
    return _squeezed(call, self, range(len(call.shape_of(self))))


@rule("squeeze.dim", any_dtype=True)
def lower_squeeze_dim(call: OperatorCall, self: Value, dim: int) -> Lowered:
    return _squeezed(call, self, [dim])


@rule("squeeze.dims", any_dtype=True)
def lower_squeeze_dims(call: OperatorCall, self: Value, dim: Sequence[int]) -> Lowered:
    return _squeezed(call, self, dim)


def _squeezed(call: OperatorCall, self: Value, dims: Sequence[int]) -> View:
    shape = call.shape_of(self)
    removed = {positive(dim, len(shape)) for dim in dims}
    gone = [n in removed and size == 1 for n, size in enumerate(shape)]

    def index(at: Coordinates) -> Coordinates:
        rest = iter(at)
        return tuple(ZERO if is_gone else next(rest) for is_gone in gone)

    return View(self, index)


def slice_map(dim: int, start: Size, step: int) -> CoordinateMap:
    """start + step * coordinate along `dim`."""

    def index(at: Coordinates) -> Coordinates:
        moved = plus(times(at[dim], step), start if not isinstance(start, int) else int(start))
        return (*at[:dim], moved, *at[dim + 1 :])

    return index


def slice_start(start: object, size: Size) -> Any:
    """The first index of a slice in [0, size]."""
    if start is None:
        return 0
    if isinstance(start, int) and isinstance(size, int):
        return min(max(start + size if start < 0 else start, 0), size)
    return size + start if isinstance(start, int) and start < 0 else start


@rule("slice.Tensor", any_dtype=True)
def lower_slice(
    call: OperatorCall,
    self: Value,
    dim: int = 0,
    start: object = None,
    end: object = None,
    step: int = 1,
) -> Lowered:
    shape = call.shape_of(self)
    dim = positive(dim, len(shape))
    return View(self, slice_map(dim, slice_start(start, shape[dim]), step))


@rule("narrow", any_dtype=True)
def lower_narrow(
    call: OperatorCall, self: Value, dim: int, start: object, length: object
) -> Lowered:
    return lower_slice(call, self, dim, start)


@rule("select.int", any_dtype=True)
def lower_select(call: OperatorCall, self: Value, dim: int, index: Any) -> Lowered:
    shape = call.shape_of(self)
    place = positive(dim, len(shape))
    chosen = index + shape[place] if isinstance(index, int) and index < 0 else index
    if isinstance(chosen, Value):
        return None
    fixed = plus(ZERO, chosen)
    return View(self, lambda at: (*at[:place], fixed, *at[place:]))


@rule("split.Tensor", "split", any_dtype=True)
def lower_split(call: OperatorCall, self: Value, split_size: Any, dim: int = 0) -> Lowered:
    dim = positive(dim, len(call.shape_of(self)))
    starts = [split_size * n for n in range(len(call.node.outputs))]
    return _split_at(call, self, dim, starts)


@rule("split_with_sizes", any_dtype=True)
def lower_split_with_sizes(
    call: OperatorCall, self: Value, split_sizes: Sequence[object], dim: int = 0
) -> Lowered:
    dim = positive(dim, len(call.shape_of(self)))
    starts: list[Any] = [0]
    for size in split_sizes[:-1]:
        starts.append(starts[-1] + size)
    return _split_at(call, self, dim, starts)


def _split_at(call: OperatorCall, self: Value, dim: int, starts: Sequence[Any]) -> Lowered:
    for position, start in enumerate(starts):
        call.result_view(position, View(self, slice_map(dim, start, 1)))
    return DONE


@rule("unbind.int", any_dtype=True)
def lower_unbind(call: OperatorCall, self: Value, dim: int = 0) -> Lowered:
    dim = positive(dim, len(call.shape_of(self)))

    def chosen(position: int) -> CoordinateMap:
        fixed = plus(ZERO, position)
        return lambda at: (*at[:dim], fixed, *at[dim:])

    for position in range(len(call.node.outputs)):
        call.result_view(position, View(self, chosen(position)))
    return DONE


@rule("diagonal", any_dtype=True)
def lower_diagonal(
    call: OperatorCall, self: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Lowered:
    rank = len(call.shape_of(self))
    return View(self, diagonal_map(rank, offset, positive(dim1, rank), positive(dim2, rank)))


def diagonal_map(rank: int, offset: int, dim1: int, dim2: int) -> CoordinateMap:
    """The last coordinate walks down the diagonal of dimensions `dim1` and `dim2`."""

    def index(at: Coordinates) -> Coordinates:
        rest, along = iter(at[:-1]), at[-1]
        moved = {
            dim1: plus(along, max(-offset, 0)),
            dim2: plus(along, max(offset, 0)),
        }
        return tuple(moved[n] if n in moved else next(rest) for n in range(rank))

    return index


@rule("unfold", any_dtype=True)
def lower_unfold(call: OperatorCall, self: Value, dimension: int, size: int, step: int) -> Lowered:
    rank = len(call.shape_of(self))
    if not rank:
        return View(self, lambda at: ())
    dim = positive(dimension, rank)

    def index(at: Coordinates) -> Coordinates:
        moved = plus(times(at[dim], step), at[-1])
        return (*at[:dim], moved, *at[dim + 1 : -1])

    return View(self, index)


@rule("as_strided", any_dtype=True)
def lower_as_strided(
    call: OperatorCall, self: Value, size: Any, stride: Sequence[Size], storage_offset: Any = None
) -> Lowered:
    """An offset counts from the start of the storage: known for what the graph computed, not for
    an input."""
    if not call.is_entry(self):
        return Reinterpreted(self, offset=storage_offset)
    if storage_offset is not None:
        return None
    base = call.shape_of(self)
    last = address(tuple(as_expr(n) - 1 for n in size), stride, 0)
    assert isinstance(last, Expr)
    room, _ = bounds(as_expr(product(base)) - last)
    if not call.is_contiguous(self) or room is None or room < 1 or 0 in size:
        return None
    return View(self, lambda at: unravel(address(at, stride, 0), base))


@rule("flip")
def lower_flip(call: OperatorCall, self: Value, dims: Sequence[int]) -> Lowered:
    shape = call.shape_of(self)
    flipped = {positive(dim, len(shape)) for dim in dims}

    def body(at: Coordinates) -> Any:
        mirrored = (
            minus(plus(ZERO, shape[n]), plus(c, 1)) if n in flipped else c for n, c in enumerate(at)
        )
        return call.read(self, tuple(mirrored))

    return body


# --- the same bits as another dtype ------------------------------------------------------------


@rule("view.dtype", any_dtype=True)
def lower_view_dtype(call: OperatorCall, self: Value, dtype: torch.dtype) -> Lowered:
    return Reinterpreted(self, (call.dtype_of(self).itemsize, dtype.itemsize))


@rule("view_as_real", any_dtype=True)
def lower_view_as_real(call: OperatorCall, self: Value) -> Lowered:
    return Reinterpreted(self, (2, 1))


@rule("view_as_complex", any_dtype=True)
def lower_view_as_complex(call: OperatorCall, self: Value) -> Lowered:
    return Reinterpreted(self, (1, 2))


# --- views that copy ---------------------------------------------------------------------------


def _register_copies() -> None:
    """`slice_copy` and its like: the view's map, read into a result of its own."""

    def copying(view_rule: Any) -> Any:
        def lower(call: OperatorCall, *args: Any, **kwargs: Any) -> Lowered:
            view = view_rule(call, *args, **kwargs)
            if not isinstance(view, View):
                return None
            return lambda at: call.read(view.base, view.index(at))

        return lower

    copies = {
        "slice_copy.Tensor": lower_slice,
        "select_copy.int": lower_select,
        "permute_copy": lower_permute,
        "transpose_copy.int": lower_transpose,
        "t_copy": lower_t,
        "expand_copy": lower_expand,
        "unsqueeze_copy": lower_unsqueeze,
        "squeeze_copy": lower_squeeze,
        "squeeze_copy.dim": lower_squeeze_dim,
        "squeeze_copy.dims": lower_squeeze_dims,
        "diagonal_copy": lower_diagonal,
        "unfold_copy": lower_unfold,
    }
    for name, view_rule in copies.items():
        add_rule(name, copying(view_rule))


_register_copies()
