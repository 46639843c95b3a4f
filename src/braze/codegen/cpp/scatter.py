"""Values written to elements whose places are looked up, point after point.

    const bool v1 = ((u64)v0 < (u64)(10L));
    if (v1) p3[r0 + v2 * 8L] = p3[r0 + v2 * 8L] + v4;

Nothing is written where an index is out of range: the place that stands for it is another's.
"""

from __future__ import annotations

from collections.abc import Sequence

from braze.codegen.cpp.operators import cast_text, form
from braze.codegen.cpp.scope import CppScope
from braze.ir.kernels.loops import Buffer, InRange, Scatter
from braze.ir.kernels.scalars import compute_dtype, walk
from braze.ir.kernels.schedule import offset
from braze.shapes.expr import Expr, as_expr


def emit_scatter(
    scope: CppScope, target: Buffer, coordinates: Sequence[Expr], scatter: Scatter
) -> None:
    """The lines of the store, in the innermost loop; in the target's dtype, each sum rounded."""
    value = scope.emit(scatter.value)
    parts = [scope.index(offset(target, coordinates)).text]
    conditions: dict[str, None] = {}
    for position, stride in zip(scatter.positions, target.stride, strict=True):
        if position is None:
            continue
        term = scope.emit(position)
        scope.in_turn = scope.in_turn or term.level == scope.depth
        parts.append(f"{term.text} * {scope.index(as_expr(stride)).text}")
        for node in walk(position):
            if isinstance(node, InRange):
                conditions[_inside(scope, node)] = None
    place = f"{scope.pointers[target]}[{' + '.join(parts)}]"
    text = value.text if scatter.kind == "set" else _sum(target, place, value.text)
    head = f"if ({' & '.join(conditions)}) " if conditions else ""
    scope.lines[scope.depth].append(f"{head}{place} = {text};")


# --- private ---------------------------------------------------------------------------------


def _inside(scope: CppScope, checked: InRange) -> str:
    """The name of the condition that an index is in range, which its check made."""
    operand = scope.emit(checked.operand)
    size = scope.index(as_expr(checked.size)).text
    return scope.known[f"((u64){operand.text} < (u64)({size}))"].text


def _sum(target: Buffer, place: str, value: str) -> str:
    dtype = target.dtype
    wide = compute_dtype(dtype)
    template = form("add", wide)
    assert template is not None, dtype
    terms = (cast_text(place, dtype, wide), cast_text(value, dtype, wide))
    return cast_text(f"({template.format(*terms)})", wide, dtype)
