"""Loop programs written by hand, for the tests of schedule, generator and linker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    BufferView,
    Definition,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    LoopProgram,
    Reduce,
    Scalar,
    Scatter,
    Statement,
)
from braze.ir.kernels.scalars import apply, cast, compute_dtype
from braze.shapes.expr import Expr, IntLike, Symbol, as_expr, floor_div, modulo

CPU = torch.device("cpu")
F32 = torch.float32

Axis = tuple[Symbol, int]


def buffer(
    name: str,
    shape: Sequence[int],
    dtype: torch.dtype = F32,
    stride: Sequence[int] | None = None,
) -> Buffer:
    """A buffer, contiguous unless strides are given."""
    if stride is None:
        stride = torch.empty(tuple(shape), device="meta").stride()
    return Buffer(name, dtype, tuple(shape), tuple(stride), CPU)


def axes(shape: Sequence[int], prefix: str = "i") -> tuple[Axis, ...]:
    """Index symbols over a shape."""
    return tuple((Symbol(f"{prefix}{k}", 0, n - 1), n) for k, n in enumerate(shape))


def load(source: Buffer, *coordinates: IntLike | Scalar) -> Load:
    """source[coordinates]."""
    plain = (int, Symbol, Expr)
    return Load(source, tuple(as_expr(c) if isinstance(c, plain) else c for c in coordinates))


def define(
    target: Buffer, over: Sequence[Axis], body: Scalar, store: Sequence[IntLike] | None = None
) -> Definition:
    """target[store] = body; the store is the axes unless it is given."""
    places = [symbol for symbol, _ in over] if store is None else store
    return Definition(target, tuple(over), tuple(map(as_expr, places)), body)


def view(whole: Buffer) -> BufferView:
    """A buffer as a view of itself."""
    return BufferView(whole, whole.shape, whole.stride, 0, whole.dtype)


def program(
    inputs: Sequence[Buffer], statements: Sequence[Statement], outputs: Sequence[Buffer]
) -> LoopProgram:
    """A program without constants and mutations."""
    return LoopProgram(tuple(inputs), (), tuple(statements), tuple(map(view, outputs)), ())


def total(kind: str, over: Sequence[Axis], body: Scalar, dtype: torch.dtype = F32) -> Reduce:
    """A reduction."""
    return Reduce(kind, tuple(over), body, dtype)


def pointwise(
    shape: Sequence[int],
    function: Callable[..., Scalar],
    *dtypes: torch.dtype,
    result: torch.dtype = F32,
) -> LoopProgram:
    """y = function(x0, x1, ...) element by element."""
    over = axes(shape)
    inputs = [buffer(f"x{k}", shape, dtype) for k, dtype in enumerate(dtypes or (F32,))]
    body = function(*(load(x, *(s for s, _ in over)) for x in inputs))
    y = buffer("y", shape, result)
    return program(inputs, [define(y, over, body)], [y])


def softmax(rows: int, columns: int, dtype: torch.dtype = F32) -> LoopProgram:
    """softmax along the last dimension, as lowering writes it."""
    shape, kept = (rows, columns), (rows, 1)
    x, y = buffer("x", shape, dtype), buffer("y", shape, dtype)
    top, e, s = buffer("top", kept), buffer("e", shape), buffer("s", kept)
    (i, _), (j, _) = over = axes(shape)
    once, along = axes(kept), axes((columns,), "r")
    r = along[0][0]
    statements = [
        define(top, once, total("max", along, cast(load(x, i, r), F32))),
        define(e, over, apply("exp", apply("sub", cast(load(x, i, j), F32), load(top, i, 0)))),
        define(s, once, total("sum", along, load(e, i, r))),
        define(y, over, cast(apply("truediv", load(e, i, j), load(s, i, 0)), dtype)),
    ]
    return program([x], statements, [y])


def add_norm(rows: int, columns: int) -> LoopProgram:
    """h = x + res; y = (h - mean) * rstd * w; returns y, h and rstd."""
    shape, kept = (rows, columns), (rows, 1)
    x, res, w = buffer("x", shape), buffer("res", shape), buffer("w", (columns,))
    h, centred, y = (buffer(name, shape) for name in ("h", "centred", "y"))
    mean, variance, rstd = (buffer(name, kept) for name in ("mean", "variance", "rstd"))
    (i, _), (j, _) = over = axes(shape)
    once, along = axes(kept), axes((columns,), "r")
    r = along[0][0]
    square = apply("mul", load(centred, i, r), load(centred, i, r))
    statements = [
        define(h, over, apply("add", load(x, i, j), load(res, i, j))),
        define(mean, once, apply("truediv", total("sum", along, load(h, i, r)), float(columns))),
        define(centred, over, apply("sub", load(h, i, j), load(mean, i, 0))),
        define(variance, once, apply("truediv", total("sum", along, square), float(columns))),
        define(rstd, once, apply("rsqrt", apply("add", load(variance, i, 0), 1e-5))),
        define(y, over, apply("mul", _scaled(centred, rstd, i, j), load(w, j))),
    ]
    return program([x, res, w], statements, [y, h, rstd])


def _scaled(centred: Buffer, rstd: Buffer, i: Symbol, j: Symbol) -> Scalar:
    return apply("mul", load(centred, i, j), load(rstd, i, 0))


def reduction(
    kind: str,
    shape: Sequence[int],
    keep: Sequence[int],
    dtype: torch.dtype = F32,
    result: torch.dtype | None = None,
) -> LoopProgram:
    """A reduction of x over the dimensions that are not in `keep`."""
    result = result or (torch.int64 if kind.startswith("arg") else dtype)
    over = axes(shape)
    x = buffer("x", shape, dtype)
    kept = tuple(axis for k, axis in enumerate(over) if k in keep)
    along = tuple(axis for k, axis in enumerate(over) if k not in keep)
    y = buffer("y", [n for _, n in kept], result)
    body = load(x, *(s for s, _ in over))
    return program([x], [define(y, kept, total(kind, along, body, result))], [y])


def channel_norm(shape: tuple[int, int, int], channels_last: bool = False) -> LoopProgram:
    """Batch norm's training statistics and normalisation of x[n, c, p] over n and p."""
    n, c, p = shape
    steps = (p * c, 1, c) if channels_last else None
    x, y = buffer("x", shape, stride=steps), buffer("y", shape, stride=steps)
    mean, variance = buffer("mean", (c,)), buffer("variance", (c,))
    (i, _), (k, _), (j, _) = over = axes(shape)
    channel = (over[1],)
    along = axes((n, p), "r")
    a, b = along[0][0], along[1][0]
    centred = apply("sub", load(x, a, k, b), load(mean, k))
    square = apply("mul", centred, centred)
    rstd = apply("rsqrt", apply("add", load(variance, k), 1e-5))
    body = apply("mul", apply("sub", load(x, i, k, j), load(mean, k)), rstd)
    count = float(n * p)
    statements = [
        define(mean, channel, apply("truediv", total("sum", along, load(x, a, k, b)), count)),
        define(variance, channel, apply("truediv", total("sum", along, square), count)),
        define(y, over, body),
    ]
    return program([x], statements, [y, mean, variance])


def transposed_add(rows: int, columns: int) -> LoopProgram:
    """y[i, j] = x[j, i] + z[i, j]."""
    x, z, y = (
        buffer("x", (columns, rows)),
        buffer("z", (rows, columns)),
        buffer("y", (rows, columns)),
    )
    (i, _), (j, _) = over = axes((rows, columns))
    return program([x, z], [define(y, over, apply("add", load(x, j, i), load(z, i, j)))], [y])


def reshaped() -> LoopProgram:
    """Pieces of rows side by side: the loop over the columns is cut."""
    x, y = buffer("x", (4, 6, 10, 8)), buffer("y", (4, 10, 48))
    (b, _), (i, _), (j, _) = over = axes((4, 10, 48))
    body = apply("mul", load(x, b, floor_div(j, 8), i, modulo(j, 8)), 2.0)
    return program([x], [define(y, over, body)], [y])


def padded() -> LoopProgram:
    """The exponential of a vector, with borders of -1."""
    x, y = buffer("x", (20,)), buffer("y", (30,))
    ((i, _),) = over = axes((30,))
    inside = Apply("ge", (Index(as_expr(i)), Literal(5, torch.int64)), torch.bool)
    below = Apply("lt", (Index(as_expr(i)), Literal(25, torch.int64)), torch.bool)
    value = apply("exp", load(x, as_expr(i) - 5))
    body = Guarded(apply("and", inside, below), value, Literal(-1.0, F32))
    return program([x], [define(y, over, body)], [y])


def joined() -> LoopProgram:
    """Two matrices side by side, written to one buffer; and its double."""
    x, z, y = buffer("x", (3, 5)), buffer("z", (3, 7)), buffer("y", (3, 12))
    (i, _), (j, _) = left = axes((3, 5))
    right = axes((3, 7))
    k = right[1][0]
    doubled = buffer("doubled", (3, 12))
    (a, _), (b, _) = whole = axes((3, 12))
    statements = [
        define(y, left, load(x, i, j), [i, j]),
        define(y, right, load(z, right[0][0], k), [right[0][0], as_expr(k) + 5]),
        define(doubled, whole, apply("mul", load(y, a, b), 2.0)),
    ]
    return program([x, z], statements, [y, doubled])


def gathered() -> LoopProgram:
    """y[i, j] = table[places[i], j], the places checked."""
    table, places = buffer("table", (10, 6)), buffer("places", (40,), torch.int64)
    y = buffer("y", (40, 6))
    (i, _), (j, _) = over = axes((40, 6))
    row = InRange(load(places, i), 10)
    return program([table, places], [define(y, over, load(table, row, j))], [y])


def scattered(
    kind: str, rows: int, columns: int, into: int, dtype: torch.dtype = F32
) -> LoopProgram:
    """y = h, and then y[places[i], j] = (or +=) x[i, j] * x[i, j], the places checked."""
    h, x = buffer("h", (into, columns), dtype), buffer("x", (rows, columns), dtype)
    places, y = buffer("places", (rows,), torch.int64), buffer("y", (into, columns), dtype)
    (k, _), (c, _) = whole = axes((into, columns))
    (i, _), (j, _) = over = axes((rows, columns))
    square = apply("mul", *[cast(load(x, i, j), compute_dtype(dtype))] * 2)
    row = InRange(load(places, i), into)
    body = Scatter(kind, (row, None), cast(square, dtype))
    statements = [define(y, whole, load(h, k, c)), define(y, over, body, (0, j))]
    return program([h, x, places], statements, [y])


def histogram(points: int, bins: int, dtype: torch.dtype = torch.int64) -> LoopProgram:
    """y[places[i]] += 1: a value that is the same at every point."""
    places, y = buffer("places", (points,), torch.int64), buffer("y", (bins,), dtype)
    whole, ((i, _),) = axes((bins,)), axes((points,))
    one = Literal(1.0 if dtype.is_floating_point else 1, dtype)
    zero = Literal(0.0 if dtype.is_floating_point else 0, dtype)
    body = Scatter("add", (InRange(load(places, i), bins),), one)
    over = axes((points,))
    return program([places], [define(y, whole, zero), define(y, over, body, (0,))], [y])
