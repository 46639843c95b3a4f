"""Constrains the loop order of kernels that scatter.

    b5[0, r0] = add at [b1[i0], _]: b2[i0, r0]

Rows are tasks of their own, which run in any order and side by side. On the CPU points that meet on
an element come in the order of the axes, so a loop that may lead several tasks to one element is no
row: here i0, which decides the place. What a plain coordinate counts (r0) leads to other elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from braze.ir.kernels.loops import Buffer, Definition, Index, Load, Scalar, Scatter, Statement
from braze.ir.kernels.scalars import walk
from braze.ir.kernels.schedule import Kernel, Store, offset, scatters
from braze.schedule.analysis.strides import stride_along
from braze.shapes.expr import ZERO, Expr, Symbol, symbols


def is_scatter(statement: Statement) -> bool:
    """Whether a statement changes elements whose places are looked up."""
    return isinstance(statement, Definition) and isinstance(statement.body, Scatter)


def may_share(store: Store, symbol: Symbol) -> bool:
    """Whether tasks may share the values of a symbol: different ones surely lead to different
    elements, or their order does not count."""
    assert isinstance(store.value, Scatter)
    if not store.value.in_order:
        return True
    if symbol in _in_positions(store.value):
        return False
    step = stride_along(offset(store.target, store.coordinates), symbol)
    return step is not None and step != ZERO


def keep_order(kernel: Kernel) -> Kernel:
    """The kernel, its rows only what no two of may meet on an element where their order counts."""
    stores = scatters(kernel)
    bound = [row for row in kernel.rows if not all(may_share(store, row[0]) for store in stores)]
    if not bound:
        return kernel
    (phase,) = kernel.phases
    rows = tuple([row for row in kernel.rows if row not in bound])
    return replace(kernel, rows=rows, phases=(replace(phase, loops=(*bound, *phase.loops)),))


def scattered(statements: Sequence[Statement]) -> set[Buffer]:
    """The buffers that scatters change."""
    return {s.target for s in statements if isinstance(s, Definition) and is_scatter(s)}


# --- private ---------------------------------------------------------------------------------


def _in_positions(scatter: Scatter) -> set[Symbol]:
    found: set[Symbol] = set()
    for position in scatter.positions:
        for expr in () if position is None else map(symbols, _expressions(position)):
            found |= expr
    return found


def _expressions(position: Scalar) -> Iterator[Expr]:
    for node in walk(position):
        if isinstance(node, Index):
            yield node.expr
        elif isinstance(node, Load):
            yield from (c for c in node.coordinates if isinstance(c, Expr))
