"""Unrolls small reductions.

    y[i0] = max(r0 < 2: x[2*i0 + r0])      becomes      y[i0] = maximum(x[2*i0], x[2*i0 + 1])

Pooling windows then vectorise over the outputs. Left alone: reductions of more than 32 elements,
of unknown size, or whose result would be a larger expression than a loop is worth.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from braze.ir.kernels.loops import Definition, InRange, Literal, Reduce, Scalar
from braze.ir.kernels.scalars import apply, cast, substitute_symbols, walk
from braze.schedule.analysis.cost import operations
from braze.shapes.expr import as_expr, constant_value

_LARGEST_WINDOW = 32
_LARGEST_ROW = 8  # of a single axis: a longer one is a loop worth having
_LARGEST_BODY = 256  # operations
_LARGEST_SEARCH = 3  # the expression of an argmax grows as a power of its length

_FOLDS = {
    "sum": "add",
    "prod": "mul",
    "max": "maximum",
    "min": "minimum",
    "any": "or",
    "all": "and",
}


def unroll(definition: Definition) -> Definition:
    """The definition, its reduction written out where it is small."""
    body = definition.body
    if not isinstance(body, Reduce):
        return definition
    sizes = [constant_value(size) for _, size in body.axes]
    if None in sizes or not _is_small([s for s in sizes if s is not None], body.body):
        return definition
    bodies = [
        substitute_symbols(body.body, dict(zip([s for s, _ in body.axes], map(as_expr, point))))
        for point in itertools.product(*(range(s or 0) for s in sizes))
    ]
    if body.kind in ("argmax", "argmin"):
        if len(bodies) > _LARGEST_SEARCH:
            return definition
        return replace(definition, body=_first_extremum(body, bodies))
    return replace(definition, body=_fold(body, bodies))


# --- private ---------------------------------------------------------------------------------


def _is_small(sizes: list[int], body: Scalar) -> bool:
    count = math.prod(sizes)
    limit = _LARGEST_WINDOW if len(sizes) > 1 else _LARGEST_ROW
    if not 0 < count <= limit or any(isinstance(n, InRange) for n in walk(body)):
        return False
    return count * (operations(body) + 1) <= _LARGEST_BODY


def _fold(reduction: Reduce, bodies: list[Scalar]) -> Scalar:
    terms = [cast(body, reduction.dtype) for body in bodies]
    while len(terms) > 1:  # pairwise: the sum of a window is as exact as it can be
        pairs = [apply(_FOLDS[reduction.kind], a, b) for a, b in zip(terms[::2], terms[1::2])]
        terms = pairs + terms[len(pairs) * 2 :]
    return terms[0]


def _first_extremum(reduction: Reduce, bodies: list[Scalar]) -> Scalar:
    best, where = bodies[0], Literal(0, reduction.dtype)
    better = "gt" if reduction.kind == "argmax" else "lt"
    chosen: Scalar = where
    for position, value in enumerate(bodies[1:], start=1):
        wins = apply(better, value, best)
        if value.dtype.is_floating_point:
            first_nan = apply("and", apply("isnan", value), apply("not", apply("isnan", best)))
            wins = apply("or", wins, first_nan)
        chosen = apply("where", wins, Literal(position, reduction.dtype), chosen)
        best = apply("where", wins, value, best)
    return chosen
