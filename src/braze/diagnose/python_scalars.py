"""Scalar and index expressions of loops as Python over grids, as `script_parts/grid.py` runs it.

    exp((b0[i0, r0] - b1[i0]))    ->    torch.exp((b0[i0, r0] - b1[i0]))

Every index symbol is a tensor along a dimension of its own: an expression gives all of its points.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, final

from braze.frozen import frozen
from braze.interop.fx_graph import NotExpressible
from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    BufferView,
    Cast,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    Reduce,
    Scalar,
    Scatter,
)
from braze.ir.kernels.print_loops import INFIX
from braze.ir.types import Size
from braze.shapes.binding import python_text
from braze.shapes.expr import Expr, Symbol, as_expr

_INFIX = {**INFIX, "shl": "<<", "shr": ">>"}

_SPECIAL = "i0 i0e i1 i1e ndtri log_ndtr erfcx bessel_j0 bessel_j1 bessel_y0 bessel_y1 zeta"

_CALLS = {
    **{name: f"torch.special.{name}({{}})" for name in _SPECIAL.split()},
    **{
        f"{family}_{kind}": f"torch.special.{family}_polynomial_{kind}({{}})"
        for family, kinds in (("chebyshev", "tuvw"), ("laguerre", "l"), ("legendre", "p"))
        for kind in kinds
    },
    "hermite_h": "torch.special.hermite_polynomial_h({})",
    "hermite_he": "torch.special.hermite_polynomial_he({})",
    **{f"bessel_k{n}": f"torch.special.modified_bessel_k{n}({{}})" for n in "01"},
    **{f"bessel_k{n}e": f"torch.special.scaled_modified_bessel_k{n}({{}})" for n in "01"},
    "trigamma": "torch.polygamma(1, {})",
    "frexp_mantissa": "torch.frexp({}).mantissa",
    "frexp_exponent": "exponent({})",
    "not": "torch.bitwise_not({})",
    "mod": "torch.remainder({})",
    "floordiv": "torch.div({}, rounding_mode='floor')",
    "truncdiv": "torch.div({}, rounding_mode='trunc')",
    "fma": "fma({})",
}


@final
@frozen
class TextNames:
    """What a text may name. sizes: of the symbols that are no index; values: buffers that are in no
    memory, and the text of their value at the point; dims: the grid's dimension of each index;
    shared: the names of nodes that have a line of their own, by identity."""

    sizes: Mapping[Symbol, str]
    values: Mapping[Buffer, str]
    dims: Mapping[Symbol, int]
    shared: dict[int, str] = dataclasses.field(default_factory=dict)


def scalar_text(scalar: Scalar, names: TextNames) -> str:
    """A scalar at all points of the grid. Raises NotExpressible."""
    named = names.shared.get(id(scalar))
    return _TEXTS[type(scalar)](scalar, names) if named is None else named


def share(scalars: Iterable[Scalar], names: TextNames) -> list[str]:
    """Lines for what occurs more than once outside of conditions, in the order in which they need
    each other; as a tree an expression may be huge."""
    counts: dict[int, int] = {}
    ordered: dict[int, Scalar] = {}

    def visit(scalar: Scalar) -> None:
        counts[id(scalar)] = counts.get(id(scalar), 0) + 1
        if counts[id(scalar)] == 1:
            for child in _children(scalar):
                visit(child)
            ordered[id(scalar)] = scalar

    for scalar in scalars:
        visit(scalar)
    lines = []
    for key, scalar in ordered.items():
        if counts[key] > 1 and not isinstance(scalar, (Literal, Load, Index)):
            text = scalar_text(scalar, names)
            names.shared[key] = f"shared{len(names.shared)}"
            lines.append(f"{names.shared[key]} = {text}")
    return lines


def index_text(expr: Expr | int, names: TextNames) -> str:
    """An index expression; symbols of indices are named as they are."""
    named = {**{symbol: symbol.name for symbol in names.dims}, **names.sizes}
    text = python_text(as_expr(expr), named)
    return re.sub(r"\b(min|max)\(", lambda m: f"{'most' if m[1] == 'max' else 'least'}(", text)


def size_text(size: Size | Symbol, sizes: Mapping[Symbol, str]) -> str:
    """A size as a number of Python's."""
    return str(size) if isinstance(size, int) else python_text(as_expr(size), sizes)


def sizes_text(sizes: Any, names: Mapping[Symbol, str]) -> str:
    """A tuple of sizes."""
    inside = "".join(f"{size_text(size, names)}, " for size in sizes)
    return f"({inside.strip() if len(sizes) == 1 else inside.removesuffix(', ')})"


def view_text(view: BufferView, sizes: Mapping[Symbol, str]) -> str:
    """The tensor of a view."""
    buffer = view.buffer
    form = (view.shape, view.stride, view.offset, view.dtype)
    if form == (buffer.shape, buffer.stride, 0, buffer.dtype):
        return f"{buffer}.tensor"
    shape, stride = (sizes_text(each, sizes) for each in (view.shape, view.stride))
    return f"{buffer}.view({shape}, {stride}, {size_text(view.offset, sizes)}, {view.dtype})"


def place_text(coordinates: Any, names: TextNames) -> str:
    """What stands between the brackets of a load or a store."""
    texts = [
        index_text(each, names) if isinstance(each, Expr) else scalar_text(each, names)
        for each in coordinates
    ]
    return ", ".join(texts) or "()"


# --- private ---------------------------------------------------------------------------------


def _children(scalar: Scalar) -> tuple[Scalar, ...]:
    """What is computed wherever the scalar is."""
    match scalar:
        case Apply():
            return scalar.operands
        case Cast() | InRange():
            return (scalar.operand,)
        case Reduce():
            return (scalar.body,)
        case Guarded():
            return (scalar.condition,)
        case Scatter():
            return (scalar.value,)
        case Load():
            return tuple([c for c in scalar.coordinates if not isinstance(c, Expr)])
    return ()


def _literal(scalar: Literal, names: TextNames) -> str:
    return f"literal({scalar.value!r}, {scalar.dtype})"


def _index(scalar: Index, names: TextNames) -> str:
    return f"index({index_text(scalar.expr, names)})"


def _load(scalar: Load, names: TextNames) -> str:
    if scalar.buffer in names.values:
        return names.values[scalar.buffer]
    return f"{scalar.buffer}[{place_text(scalar.coordinates, names)}]"


def _apply(scalar: Apply, names: TextNames) -> str:
    operands = [scalar_text(operand, names) for operand in scalar.operands]
    if scalar.op in _INFIX:
        return f"({operands[0]} {_INFIX[scalar.op]} {operands[1]})"
    return _CALLS.get(scalar.op, f"torch.{scalar.op}({{}})").format(", ".join(operands))


def _cast(scalar: Cast, names: TextNames) -> str:
    return f"{scalar_text(scalar.operand, names)}.to({scalar.dtype})"


def _guarded(scalar: Guarded, names: TextNames) -> str:
    condition, value, other = (
        scalar_text(each, names) for each in (scalar.condition, scalar.value, scalar.other)
    )
    return f"guarded({condition}, lambda: {value}, lambda: {other})"


def _in_range(scalar: InRange, names: TextNames) -> str:
    return f"checked({scalar_text(scalar.operand, names)}, {size_text(scalar.size, names.sizes)})"


def _reduce(scalar: Reduce, names: TextNames) -> str:
    over = [f"{names.dims[axis]}: {size_text(n, names.sizes)}" for axis, n in scalar.axes]
    body = scalar_text(scalar.body, names)
    return f"fold({scalar.kind!r}, {body}, {{{', '.join(over)}}}, {scalar.dtype})"


def _scatter(scalar: Scatter, names: TextNames) -> str:
    raise NotExpressible("a scatter inside of an expression")


_TEXTS: dict[type, Callable[[Any, TextNames], str]] = {
    Literal: _literal,
    Index: _index,
    Load: _load,
    Apply: _apply,
    Cast: _cast,
    Guarded: _guarded,
    InRange: _in_range,
    Reduce: _reduce,
    Scatter: _scatter,
}
