"""Which changing sizes of a program may be padded: run larger, and results cut.

y[i0 < s0, i1 < 8] = x[i0, i1] + 1        s0 = 5 run as 64: rows 0 to 4 of y are what they were
"""

from __future__ import annotations

from typing import final

from braze.frozen import frozen
from braze.shapes.expr import Expr, Symbol


@final
@frozen
class Rows:
    """Where the rows of a size `s` are in a dimension: it has outer * s * inner elements, and row r
    has those at a * s * inner + r * inner + e, for a < outer, e < inner."""

    dim: int
    outer: Expr
    inner: Expr


@final
@frozen
class PaddedSize:
    """A size of which each row of every result is computed by itself.

    symbol: the size. most: it may be run as no more than that; None: as anything.
    inputs: (number of an input, the dimension of it that has the size).
    results: (number of a result, its rows); the others have none.
    """

    symbol: Symbol
    most: int | None
    inputs: tuple[tuple[int, int], ...]
    results: tuple[tuple[int, Rows], ...]


@final
@frozen
class Padding:
    """sizes: that may be padded, all together. refused: why others may not, a sentence each."""

    sizes: tuple[PaddedSize, ...] = ()
    refused: tuple[str, ...] = ()


NO_PADDING = Padding()
