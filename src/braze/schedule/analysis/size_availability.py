"""Finds the step behind which each data-dependent number is known; sizes that use it come later.

%3: int(u0) = aten.sym_size.int(%2, 0)
b4[i0 < u0] = ...                            never in a kernel before that call
"""

from __future__ import annotations

from typing import final

from braze.ir.kernels.loops import Definition, Index, InRange, Load, Reduce
from braze.ir.kernels.scalars import walk
from braze.shapes.binding import Sizes
from braze.shapes.expr import Expr, IntLike, Symbol, symbols


@final
class NumbersKnown:
    """The first place in the order of steps at which each computed number is known."""

    def __init__(self, sizes: Sizes) -> None:
        self._derived = sizes.derived
        self._places: dict[Symbol, int] = {}

    def note(self, symbol: Symbol, place: int) -> None:
        """From `place` on a symbol is known, and what follows from it."""
        self._places[symbol] = place
        for other, expr in self._derived:
            if other not in self._places and not self._places.keys().isdisjoint(symbols(expr)):
                self._places[other] = max(self._places.get(s, 0) for s in symbols(expr))

    def earliest(self, definition: Definition) -> int:
        """The first place where all numbers that a definition names are known."""
        if not self._places:
            return 0
        target = definition.target
        used = _symbols_in([*target.shape, *target.stride, *definition.store])
        used |= _symbols_in([size for _, size in definition.axes])
        for node in walk(definition.body):
            if isinstance(node, Index):
                used |= symbols(node.expr)
            elif isinstance(node, Load):
                used |= _symbols_in([c for c in node.coordinates if isinstance(c, Expr)])
            elif isinstance(node, Reduce):
                used |= _symbols_in([size for _, size in node.axes])
            elif isinstance(node, InRange):
                used |= _symbols_in([node.size])
        return max((self._places.get(symbol, 0) for symbol in used), default=0)


def _symbols_in(sizes: list[IntLike]) -> set[Symbol]:
    return set().union(*map(symbols, sizes))
