"""Tracks, for the proof of row independence, what a definition reads per row and holds in padding.

Behind the size inputs are zero. What follows from that is a number, the row's number moved by one
(positions), the same as in a row that every call has, or not known:

    x[i0, i1]                0           of an input with the size
    x[i0, i1] + 3            3
    index(i0) + 2            row + 2
    w[i1], x[0, i1]          as in row 0
    exp(x[i0, i1])           not known, and nobody asks

It is asked for indices alone: `table[checked(x[i0], 100), i1]` reads row 0 of the table there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeAlias, final

import torch

from braze.frozen import frozen
from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    Cast,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    Reduce,
    Scalar,
)
from braze.ir.kernels.padding import Rows
from braze.ir.types import Size
from braze.schedule.padding.row_mapping import Dependent, row_of
from braze.shapes.expr import Expr, Symbol, as_expr, bounds, constant_value, symbols
from braze.shapes.substitution import substitute


@final
class Same(Enum):
    """AS_IN_ROW_ZERO: what the row has that is in every call. UNKNOWN: anything."""

    AS_IN_ROW_ZERO = "as in row 0"
    UNKNOWN = "unknown"


@final
@frozen
class Position:
    """The number of the row, plus that."""

    moved: int


Value: TypeAlias = bool | int | float | Position | Same
SAME, UNKNOWN = Same.AS_IN_ROW_ZERO, Same.UNKNOWN

_INTEGERS = (torch.int64, torch.int32)
_FOLDS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": operator.add,
        "sub": operator.sub,
        "mul": operator.mul,
        "neg": operator.neg,
        "lt": operator.lt,
        "le": operator.le,
        "gt": operator.gt,
        "ge": operator.ge,
        "eq": operator.eq,
        "ne": operator.ne,
        "maximum": max,
        "minimum": min,
        "floordiv": operator.floordiv,
        "mod": operator.mod,
    }
)


class Reach(Enum):
    """Whether a part of a body is computed in rows behind the size, if it is in others."""

    ALWAYS = "always"
    MAYBE = "maybe"
    NEVER = "never"


def joined(left: Value, right: Value) -> Value:
    """What is known where it is one or the other."""
    return left if left == right and type(left) is type(right) else UNKNOWN


@final
class RowValues:
    """Of one definition's body, its row being `row`.

    rows, padding: of the buffers before. extents: ends of the loops' symbols, the row left out.
    replaced: the symbol of the loop over the size -> what it is by rows. lost: buffers that may not
    be read. most: the size may be run as no more than that; None: as anything.
    """

    def __init__(
        self,
        size: Symbol,
        row: Symbol,
        rows: Mapping[Buffer, Rows | None],
        padding: Mapping[Buffer, Value],
        extents: Mapping[Symbol, Size],
    ) -> None:
        self.size, self.row, self.rows, self.padding = size, row, rows, padding
        self.extents = dict(extents)
        self.replaced: Mapping[Symbol, Expr] = {}
        self.lost: set[Buffer] = set()
        self.most: int | None = None
        self._found: dict[tuple[int, Reach], Value] = {}

    def of(self, body: Scalar, reach: Reach = Reach.ALWAYS) -> Value:
        """What it is in rows behind the size. Raises Dependent where rows meet."""
        key = id(body), reach
        if key not in self._found:
            self._found[key] = self._visited(body, reach)
        return self._found[key]

    # --- private -----------------------------------------------------------------------------

    def _visited(self, body: Scalar, reach: Reach) -> Value:
        match body:
            case Literal():
                return body.value
            case Index():
                return self._position(self._expr(body.expr))
            case Load():
                return self._load(body, reach)
            case Cast():
                return _converted(self.of(body.operand, reach), body.dtype)
            case InRange():
                value = self.of(body.operand, reach)
                self._demand(value, self._expr(as_expr(body.size)), reach)
                return value
            case Guarded():
                return self._guarded(body, reach)
            case Apply():
                return self._applied(body, reach)
            case Reduce():
                return self._reduced(body, reach)
        raise Dependent("its rows are scattered")

    def _expr(self, value: Expr) -> Expr:
        """An index expression by rows; raises Dependent where it follows from the size."""
        found = substitute(value, self.replaced)
        if self.size in symbols(found):
            raise Dependent(f"its value is used: {value}")
        return found

    def _position(self, value: Expr) -> Value:
        number = constant_value(value)
        if number is not None:
            return number
        if self.row not in symbols(value):
            return SAME
        moved = constant_value(value - self.row)
        return UNKNOWN if moved is None else Position(moved)

    def _applied(self, body: Apply, reach: Reach) -> Value:
        values = [self.of(one, reach) for one in body.operands]
        # A number that the program names is there in every row; one that follows from zeros is not.
        pairs = zip(body.operands, values, strict=True)
        if all(value is SAME or isinstance(one, Literal) for one, value in pairs):
            return SAME
        return _folded(body.op, values)

    def _reduced(self, body: Reduce, reach: Reach) -> Value:
        for symbol, length in body.axes:
            if self.size in symbols(length):
                raise Dependent(f"it is folded over ({body.kind})")
            if self.extents.setdefault(symbol, length) != length:
                raise Dependent(f"two loops have the symbol {symbol}")
        return SAME if self.of(body.body, reach) is SAME else UNKNOWN

    def _guarded(self, body: Guarded, reach: Reach) -> Value:
        condition = self.of(body.condition, reach)
        ways = [Reach.MAYBE, Reach.MAYBE]
        if reach is Reach.NEVER:
            ways = [Reach.NEVER, Reach.NEVER]
        elif condition is SAME:
            ways = [reach, reach]
        elif isinstance(condition, (bool, int, float)):
            # Of rows before the size either may be taken: that is not what is known here.
            taken = reach if isinstance(body.condition, Literal) else Reach.MAYBE
            ways = [taken, Reach.NEVER] if condition else [Reach.NEVER, taken]
        values = [self.of(one, way) for one, way in zip((body.value, body.other), ways)]
        if isinstance(condition, (bool, int, float)):
            return values[0 if condition else 1]
        return joined(*values)

    def _load(self, body: Load, reach: Reach) -> Value:
        buffer = body.buffer
        if buffer in self.lost:
            raise Dependent(f"{buffer} follows from it")
        rows = self.rows[buffer]
        same, in_row = True, False
        for dim, coordinate in enumerate(body.coordinates):
            if rows is not None and dim == rows.dim:
                plain = self._plain(coordinate, as_expr(buffer.shape[dim]))
                if plain is None:
                    raise Dependent(f"rows of {buffer} are looked up")
                placed = substitute(plain, self.replaced)
                in_row = row_of(placed, self.size, self.row, rows, self.extents)
                continue
            value = self._coordinate(coordinate, buffer.shape[dim], reach)
            same = same and value
        if in_row:
            return self.padding[buffer]
        return SAME if same else UNKNOWN

    def _plain(self, coordinate: Expr | Scalar, length: Expr) -> Expr | None:
        """A coordinate that is looked up in what is no data: `x[arange(len(x))]`, which is checked,
        and counted from the end where it is negative. length: of the dimension."""
        match coordinate:
            case Expr():
                return coordinate
            case Index():
                return coordinate.expr
            case InRange() if as_expr(coordinate.size) == length:
                return self._plain(coordinate.operand, length)
            case Apply(op="where", operands=(Apply(op="lt", operands=(left, right)), _, other)):
                plain = self._plain(left, length) if isinstance(left, Index) else None
                low = None if plain is None else bounds(substitute(plain, self.replaced))[0]
                is_zero = isinstance(right, Literal) and right.value == 0
                return (
                    self._plain(other, length) if is_zero and low is not None and low >= 0 else None
                )
        return None

    def _coordinate(self, coordinate: Expr | Scalar, length: Size, reach: Reach) -> bool:
        """Whether it is, behind the size, as in row zero. It may not be out of range there."""
        if isinstance(coordinate, Expr):
            placed = self._expr(coordinate)
            if self.row not in symbols(placed):
                return True
            self._demand(self._position(placed), as_expr(length), Reach.MAYBE)
            return False
        value = self.of(coordinate, reach)
        if not isinstance(coordinate, InRange):
            self._demand(value, as_expr(length), reach)
        return value is SAME

    def _demand(self, value: Value, length: Expr, reach: Reach) -> None:
        """An index must be in range in rows behind the size."""
        number = constant_value(length)
        if reach is Reach.NEVER or (value is SAME and reach is Reach.ALWAYS):
            return
        if isinstance(value, Position) and number is not None and value.moved >= 0:
            most = number - value.moved
            self.most = most if self.most is None else min(self.most, most)
            return
        if isinstance(value, int):
            low, _ = bounds(length)
            if low is not None and 0 <= int(value) < low:
                return
        raise Dependent("an index of rows behind it is not known to be in range")


def _converted(value: Value, dtype: torch.dtype) -> Value:
    if isinstance(value, Position):
        return value if dtype in _INTEGERS else UNKNOWN
    if isinstance(value, Same):
        return value
    if dtype == torch.bool:
        return bool(value)
    if isinstance(value, float):
        is_small = value == int(value) and abs(value) < 100 if value - value == 0 else False
        return (float(value) if dtype.is_floating_point else int(value)) if is_small else UNKNOWN
    if dtype.is_floating_point:
        return float(value) if abs(value) < 100 else UNKNOWN
    return int(value) if dtype in _INTEGERS else UNKNOWN


def _folded(op: str, operands: list[Value]) -> Value:
    """Integers alone: sums of floats are rounded."""
    if op == "where" and isinstance(operands[0], (bool, int)):
        return operands[1] if operands[0] else operands[2]
    if op in ("add", "sub") and isinstance(operands[0], Position) and type(operands[1]) is int:
        moved = operands[1] if op == "add" else -operands[1]
        return Position(operands[0].moved + moved)
    if op == "lt" and isinstance(operands[0], Position) and type(operands[1]) is int:
        return False if operands[0].moved >= operands[1] else UNKNOWN  # rows are not negative
    if op in ("floordiv", "mod") and not operands[1]:
        return UNKNOWN
    if op in _FOLDS and all(type(one) is int for one in operands):
        made: int = _FOLDS[op](*operands)
        return made if abs(made) < 2**31 else UNKNOWN
    return UNKNOWN
