"""Merges neighbouring reduction axes that are contiguous in memory.

    y[c] = sum(n < 32, h < 112, w < 112: x[n, c, h, w])        with x in channels-last layout
becomes
    y[c] = sum(r < 401408: x[0, c, 0, r])                         which is at x + 64 * r + c

What is cut into parts is so cut anywhere, not only between images or rows of them. A coordinate
then says how far to go, beyond the extent of its own dimension: such a load is at no point that a
definition writes, and is not fused with what writes it, but by `summed_points.py` at the end.
"""

from __future__ import annotations

from dataclasses import replace

from braze.ir.kernels.loops import Definition, Index, InRange, Load, Reduce, Scalar
from braze.ir.kernels.scalars import substitute_symbols, walk
from braze.schedule.analysis.strides import load_accesses, stride_along
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import ZERO, Expr, Symbol, as_expr, constant_value, symbols


def flattened(definition: Definition, names: Names) -> Definition:
    """The reduction with as few axes as memory has; of known sizes, and of plain loads only."""
    body = definition.body
    if not isinstance(body, Reduce) or len(body.axes) < 2 or body.kind in ("argmax", "argmin"):
        return definition
    merged = _merged_once(body, names)
    while merged is not None and len(merged.axes) > 1:
        body, merged = merged, _merged_once(merged, names)
    body = merged or body
    return definition if body is definition.body else replace(definition, body=body)


# --- private ---------------------------------------------------------------------------------


def _merged_once(body: Reduce, names: Names) -> Reduce | None:
    """Two neighbours as one; None where no two are."""
    if not _is_plain(body.body, {symbol for symbol, _ in body.axes}):
        return None
    places = [place for _, place in load_accesses(body.body)]
    for number in range(len(body.axes) - 1):
        (outer, size), (inner, length) = body.axes[number : number + 2]
        count, width = constant_value(size), constant_value(length)
        if count is None or width is None:
            return None
        if all(_is_one_walk(place, outer, inner, width) for place in places):
            both = names.symbol("f", count * width)
            at = {outer: ZERO, inner: as_expr(both)}
            axes = (*body.axes[:number], (both, count * width), *body.axes[number + 2 :])
            return replace(body, axes=axes, body=substitute_symbols(body.body, at))
    return None


def _is_plain(scalar: Scalar, reduced: set[Symbol]) -> bool:
    """Whether reduced symbols say where loads are, and nothing else."""
    for node in walk(scalar):
        if isinstance(node, Load) and not all(isinstance(c, Expr) for c in node.coordinates):
            return False
        if isinstance(node, (InRange, Reduce)):
            return False
        if isinstance(node, Index) and symbols(node.expr) & reduced:
            return False
    return True


def _is_one_walk(place: Expr, outer: Symbol, inner: Symbol, width: int) -> bool:
    """Whether the next point of the outer one follows the last one of the inner one."""
    far, near = stride_along(place, outer), stride_along(place, inner)
    return far is not None and near is not None and far == near * width
