"""Operators that put tensors together or around: disjoint regions of one result, or guards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from braze.ir.graphs.graph import Value
from braze.ir.kernels.loops import Guarded, Scalar
from braze.ir.kernels.scalars import apply, cast, compute_dtype, literal
from braze.ir.types import Size, known_sizes
from braze.lower.coordinates import (
    Coordinate,
    Coordinates,
    as_scalar,
    minus,
    plus,
    quotient,
    remainder,
    times,
)
from braze.lower.lowering import OperatorCall
from braze.lower.operators.views import positive, slice_start
from braze.lower.rules import DONE, Body, Lowered, View, add_rule, rule
from braze.shapes.expr import ZERO, Expr, as_expr, constant_value, maximum, minimum, modulo


def _shifted(dim: int, start: Any) -> Callable[[Coordinates], Coordinates]:
    return lambda at: (*at[:dim], plus(at[dim], start), *at[dim + 1 :])


@rule("cat", "concatenate", any_dtype=True)
def lower_cat(call: OperatorCall, tensors: Sequence[Value], dim: int = 0) -> Lowered:
    dtype = call.output().dtype
    if dtype.is_complex:
        return None
    rank = len(call.output().shape)
    dim = positive(dim, rank)
    parts = []
    start: Any = 0
    for tensor in tensors:
        shape = call.shape_of(tensor)
        if len(shape) != rank or shape[dim] == 0:  # an empty vector joins anything
            continue

        def body(at: Coordinates, tensor: Value = tensor) -> Scalar:
            return call.read(tensor, at, dtype)

        parts.append((shape, _shifted(dim, start), body))
        start = start + shape[dim]
    if not parts:
        return lambda at: literal(0, dtype)
    call.regions(parts)
    return DONE


@rule("stack")
def lower_stack(call: OperatorCall, tensors: Sequence[Value], dim: int = 0) -> Lowered:
    dtype = call.output().dtype
    rank = len(call.output().shape)
    dim = positive(dim, rank)
    parts = []
    for position, tensor in enumerate(tensors):

        def store(at: Coordinates, position: int = position) -> Coordinates:
            return (*at[:dim], plus(ZERO, position), *at[dim:])

        def body(at: Coordinates, tensor: Value = tensor) -> Scalar:
            return call.read(tensor, at, dtype)

        parts.append((call.shape_of(tensor), store, body))
    call.regions(parts)
    return DONE


@rule("repeat")
def lower_repeat(call: OperatorCall, self: Value, repeats: Sequence[Size]) -> Lowered:
    shape = call.shape_of(self)
    if 0 in shape:
        return lambda at: literal(0, call.output().dtype)

    def body(at: Coordinates) -> Scalar:
        inside = at[len(at) - len(shape) :]
        wrapped = (ZERO if n == 1 else remainder(c, n) for c, n in zip(inside, shape, strict=True))
        return call.read(self, tuple(wrapped))

    return body


@rule("roll")
def lower_roll(call: OperatorCall, self: Value, shifts: Any, dims: Any = ()) -> Lowered:
    shape = call.shape_of(self)
    shifts = shifts if isinstance(shifts, (list, tuple)) else [shifts]
    if not dims or not all(isinstance(size, int) and size for size in shape):
        return None
    moved: dict[int, Any] = {}
    for shift, dim in zip(shifts, dims, strict=True):
        place = positive(dim, len(shape))
        moved[place] = moved.get(place, 0) + shift
    parts: list[tuple[tuple[Size, ...], Any, Any]] = []
    back = {n: modulo(as_expr(-shift), as_expr(shape[n])) for n, shift in moved.items()}
    if len(moved) == 1:
        ((dim, start),) = back.items()
        known = constant_value(start)
        if known is not None:
            return _roll_regions(call, self, dim, -known % int(shape[dim]), parts)

    def body(at: Coordinates) -> Scalar:
        found = (
            remainder(plus(c, back[n]), shape[n]) if n in back else c for n, c in enumerate(at)
        )
        return call.read(self, tuple(found))

    return body


def _roll_regions(
    call: OperatorCall, self: Value, dim: int, shift: int, parts: list[Any]
) -> Lowered:
    """The part that stays in order, and the part that wraps around."""
    shape = call.shape_of(self)
    size = int(shape[dim])
    for length, source, target in ((size - shift, 0, shift), (shift, size - shift, 0)):
        if length:
            region = (*shape[:dim], length, *shape[dim + 1 :])
            parts.append((region, _shifted(dim, target), _reading(call, self, dim, source)))
    call.regions(parts)
    return DONE


def _reading(call: OperatorCall, source: Value, dim: int, start: object) -> Callable[..., object]:
    dtype = call.output().dtype
    return lambda at: call.read(source, _shifted(dim, start)(at), dtype)


# --- writing a part ----------------------------------------------------------------------------


@rule("slice_scatter")
def lower_slice_scatter(
    call: OperatorCall,
    self: Value,
    src: Value,
    dim: int = 0,
    start: Any = None,
    end: object = None,
    step: int = 1,
) -> Lowered:
    shape = call.shape_of(self)
    dim = positive(dim, len(shape))
    size, length = shape[dim], call.shape_of(src)[dim]
    start = slice_start(start, size)
    if isinstance(start, Value):
        return None
    dtype = call.output().dtype
    if step == 1:
        return _replace_range(call, self, src, dim, start, length)

    def body(at: Coordinates) -> Scalar:
        offset = minus(at[dim], plus(ZERO, start))
        there = (*at[:dim], quotient(offset, step), *at[dim + 1 :])
        on_step = apply("eq", as_scalar(remainder(offset, step)), 0)
        inside = apply("and", on_step, _between(offset, length * step))
        return Guarded(inside, call.read(src, there, dtype), call.read(self, at, dtype))

    return body


def _between(coordinate: Coordinate, size: Size) -> Scalar:
    """0 <= coordinate < size."""
    scalar = as_scalar(coordinate)
    return apply("and", apply("ge", scalar, 0), apply("lt", scalar, as_scalar(plus(ZERO, size))))


def _replace_range(
    call: OperatorCall, self: Value, src: Value, dim: int, start: Size, length: int | Expr
) -> Lowered:
    shape = call.shape_of(self)
    dtype = call.output().dtype
    stop = start + length
    parts: list[Any] = []
    for first, count in ((0, start), (stop, shape[dim] - stop)):
        if not _is_none(count):
            region = (*shape[:dim], count, *shape[dim + 1 :])
            parts.append((region, _shifted(dim, first), _reading(call, self, dim, first)))
    if not _is_none(length):
        region = (*shape[:dim], length, *shape[dim + 1 :])
        parts.append((region, _shifted(dim, start), lambda at: call.read(src, at, dtype)))
    call.regions(parts)
    return DONE


def _is_none(count: Size) -> bool:
    """Whether a region has no rows, at all sizes."""
    return constant_value(as_expr(count)) == 0


@rule("select_scatter")
def lower_select_scatter(
    call: OperatorCall, self: Value, src: Value, dim: int, index: Any
) -> Lowered:
    shape = call.shape_of(self)
    dim = positive(dim, len(shape))
    if isinstance(index, Value):
        return None
    chosen = index + shape[dim] if isinstance(index, int) and index < 0 else index
    dtype = call.output().dtype
    parts: list[Any] = []
    for first, count in ((0, chosen), (chosen + 1, shape[dim] - chosen - 1)):
        if not _is_none(count):
            region = (*shape[:dim], count, *shape[dim + 1 :])
            parts.append((region, _shifted(dim, first), _reading(call, self, dim, first)))
    row = (*shape[:dim], *shape[dim + 1 :])
    fixed = plus(ZERO, chosen)
    parts.append(
        (row, lambda at: (*at[:dim], fixed, *at[dim:]), lambda at: call.read(src, at, dtype))
    )
    call.regions(parts)
    return DONE


def _diagonal_condition(
    at: Coordinates, offset: int, dim1: int, dim2: int
) -> tuple[Scalar, Coordinate]:
    """(whether the point is on the diagonal, its position along it)."""
    gap = minus(at[dim2], at[dim1])
    on_diagonal = apply("eq", as_scalar(gap), offset)
    return on_diagonal, plus(at[dim1], 0) if offset >= 0 else plus(at[dim2], 0)


@rule("diagonal_scatter")
def lower_diagonal_scatter(
    call: OperatorCall, self: Value, src: Value, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Lowered:
    rank = len(call.shape_of(self))
    first, second = positive(dim1, rank), positive(dim2, rank)
    dtype = call.output().dtype

    def body(at: Coordinates) -> Scalar:
        on_diagonal, along = _diagonal_condition(at, offset, first, second)
        others = tuple(c for n, c in enumerate(at) if n not in (first, second))
        value = call.read(src, (*others, along), dtype)
        return Guarded(on_diagonal, value, call.read(self, at, dtype))

    return body


@rule("diag_embed")
def lower_diag_embed(
    call: OperatorCall, self: Value, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Lowered:
    rank = len(call.output().shape)
    first, second = positive(dim1, rank), positive(dim2, rank)
    dtype = call.output().dtype

    def body(at: Coordinates) -> Scalar:
        on_diagonal, along = _diagonal_condition(at, offset, first, second)
        others = tuple(c for n, c in enumerate(at) if n not in (first, second))
        return Guarded(on_diagonal, call.read(self, (*others, along)), literal(0, dtype))

    return body


def _padded_gradient(call: OperatorCall, index: Any, inside: Any, source: Value) -> Lowered:
    dtype = call.output().dtype
    return lambda at: Guarded(inside(at), call.read(source, index(at), dtype), literal(0, dtype))


@rule("slice_backward")
def lower_slice_backward(
    call: OperatorCall,
    grad_output: Value,
    input_sizes: Sequence[Size],
    dim: int,
    start: object,
    end: object,
    step: int,
) -> Lowered:
    dim = positive(dim, len(input_sizes))
    first = slice_start(start, input_sizes[dim])
    length = call.shape_of(grad_output)[dim]

    def inside(at: Coordinates) -> Scalar:
        offset = minus(at[dim], plus(ZERO, first))
        within = _between(offset, length * step)
        if step == 1:
            return within
        return apply("and", within, apply("eq", as_scalar(remainder(offset, step)), 0))

    def index(at: Coordinates) -> Coordinates:
        offset = minus(at[dim], plus(ZERO, first))
        return (*at[:dim], quotient(offset, step), *at[dim + 1 :])

    return _padded_gradient(call, index, inside, grad_output)


@rule("select_backward")
def lower_select_backward(
    call: OperatorCall, grad_output: Value, input_sizes: Sequence[Size], dim: int, index: Any
) -> Lowered:
    dim = positive(dim, len(input_sizes))
    if isinstance(index, Value):
        return None
    chosen = index + input_sizes[dim] if isinstance(index, int) and index < 0 else index

    def inside(at: Coordinates) -> Scalar:
        return apply("eq", as_scalar(at[dim]), as_scalar(plus(ZERO, chosen)))

    return _padded_gradient(call, lambda at: (*at[:dim], *at[dim + 1 :]), inside, grad_output)


# --- padding -----------------------------------------------------------------------------------


@rule("constant_pad_nd")
def lower_constant_pad(
    call: OperatorCall, self: Value, pad: Sequence[Size], value: Any = 0
) -> Lowered:
    shape = call.shape_of(self)
    rank = len(shape)
    if isinstance(value, (Value, complex)):
        return None
    sides = {rank - 1 - n // 2: (pad[n], pad[n + 1]) for n in range(0, len(pad), 2)}
    dtype = call.output().dtype
    filler = cast(literal(value, compute_dtype(dtype)), dtype)

    def body(at: Coordinates) -> Scalar:
        condition: Scalar | None = None
        point = list(at)
        for dim, (before, after) in sides.items():
            point[dim] = minus(at[dim], plus(ZERO, before))
            tests = []
            if before != 0 and not (isinstance(before, int) and before < 0):
                tests.append(apply("ge", as_scalar(point[dim]), 0))
            if after != 0 and not (isinstance(after, int) and after < 0):
                end = as_scalar(plus(ZERO, shape[dim]))
                tests.append(apply("lt", as_scalar(point[dim]), end))
            for test in tests:
                condition = test if condition is None else apply("and", condition, test)
        value = call.read(self, tuple(point))
        return value if condition is None else Guarded(condition, value, filler)

    return body


def _edge_map(kind: str) -> Callable[[Any, int], Expr]:
    """From a coordinate that may lie outside [0, size) to the one that its value comes from."""

    def replicated(place: Expr, size: int) -> Expr:
        return minimum(maximum(place, 0), size - 1)

    def reflected(place: Expr, size: int) -> Expr:
        above = maximum(place, -place)
        rest = (size - 1) - above
        return (size - 1) - maximum(rest, -rest)

    return replicated if kind == "replication" else reflected


def _register_edge_padding() -> None:
    def padding(kind: str) -> Any:
        edge = _edge_map(kind)

        def lower(call: OperatorCall, self: Value, padding: Sequence[Size]) -> Lowered:
            shape, sides = known_sizes(call.shape_of(self)), known_sizes(padding)
            if shape is None or sides is None:
                return None
            rank = len(shape)
            before = {rank - 1 - n // 2: sides[n] for n in range(0, len(sides), 2)}

            def body(at: Coordinates) -> Scalar:
                point = tuple(
                    edge(minus(c, plus(ZERO, before[n])), shape[n]) if n in before else c
                    for n, c in enumerate(at)
                )
                return call.read(self, point)

            return body

        return lower

    for kind in ("reflection", "replication"):
        for dims in (1, 2, 3):
            add_rule(f"{kind}_pad{dims}d", padding(kind))


_register_edge_padding()


# --- rearranged --------------------------------------------------------------------------------


@rule("pixel_shuffle")
def lower_pixel_shuffle(call: OperatorCall, self: Value, upscale_factor: int) -> Lowered:
    factor = upscale_factor

    def body(at: Coordinates) -> Scalar:
        *lead, channel, row, column = at
        inner = plus(times(remainder(row, factor), factor), remainder(column, factor))
        source = plus(times(channel, factor * factor), inner)
        return call.read(self, (*lead, source, quotient(row, factor), quotient(column, factor)))

    return body


@rule("pixel_unshuffle")
def lower_pixel_unshuffle(call: OperatorCall, self: Value, downscale_factor: int) -> Lowered:
    factor = downscale_factor

    def body(at: Coordinates) -> Scalar:
        *lead, channel, row, column = at
        inner = remainder(channel, factor * factor)
        source_row = plus(times(row, factor), quotient(inner, factor))
        source_column = plus(times(column, factor), remainder(inner, factor))
        there = (quotient(channel, factor * factor), source_row, source_column)
        return call.read(self, (*lead, *there))

    return body


@rule("channel_shuffle", "native_channel_shuffle")
def lower_channel_shuffle(call: OperatorCall, self: Value, groups: int) -> Lowered:
    channels = call.shape_of(self)[1]
    if not isinstance(channels, int):
        return None

    def body(at: Coordinates) -> Scalar:
        group, inside = remainder(at[1], groups), quotient(at[1], groups)
        source = plus(times(group, channels // groups), inside)
        return call.read(self, (at[0], source, *at[2:]))

    return body


@rule("glu")
def lower_glu(call: OperatorCall, self: Value, dim: int = -1) -> Lowered:
    shape = call.shape_of(self)
    dim = positive(dim, len(shape))
    half = call.output().shape[dim]
    dtype = call.output().dtype

    def body(at: Coordinates) -> Scalar:
        gate = call.read_as(self, _shifted(dim, half)(at), dtype)
        open_gate = apply("add", apply("exp", apply("neg", gate)), 1.0)
        return apply("truediv", call.read_as(self, at, dtype), open_gate)

    return body


@rule("unbind_copy.int")
def lower_unbind_copy(call: OperatorCall, self: Value, dim: int = 0) -> Lowered:
    dim = positive(dim, len(call.shape_of(self)))
    for position in range(len(call.node.outputs)):
        call.result(position, _slice_of(call, self, dim, plus(ZERO, position)))
    return DONE


def _slice_of(call: OperatorCall, value: Value, dim: int, place: Coordinate) -> Body:
    return lambda at: call.read(value, (*at[:dim], place, *at[dim:]))


@rule("unsafe_split.Tensor", any_dtype=True)
def lower_unsafe_split(call: OperatorCall, self: Value, split_size: Any, dim: int = 0) -> Lowered:
    dim = positive(dim, len(call.shape_of(self)))
    for position in range(len(call.node.outputs)):
        call.result_view(position, View(self, _shifted(dim, split_size * position)))
    return DONE
