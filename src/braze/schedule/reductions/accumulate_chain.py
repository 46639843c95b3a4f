"""Accumulates sums of many operands while the operands are computed, one kernel after the other.

    g1[i] = e1                                  g1[i] = g0[i] + e1
    y1[j] = g0[j + 64] + g1[j + 64]             y1[j] = g1[j + 64]
    g2[k] = e2                          ->      g2[k] = g1[k] + e2
    y2[j] = g0[j + 32] + g1[j + 32]             y2[j] = g2[j + 32]
            + g2[j + 32]

What a layer of a dense network reads is all pieces before it, so the gradient of a piece is a sum
over all layers behind: by itself that is one late kernel, for which all of these wide gradients
wait. Here each takes the sum so far with it, and one of them is alive. The order of the additions
stays, so does each rounding; as many elements are read and written as before, or fewer.

Refused: what is read otherwise, too, or by fewer elements than it has; operands that are not read
at the same place; a sum so far that is not there before what the next operand is computed of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    Cast,
    Definition,
    Load,
    Reduce,
    Scalar,
    Scatter,
    Statement,
)
from braze.ir.kernels.scalars import loads, rebuild, replace_children, walk
from braze.schedule.analysis.cost import estimated, loops
from braze.schedule.analysis.uses import Uses
from braze.shapes.expr import Expr, as_expr, constant_value, symbols

Coordinates: TypeAlias = tuple[Expr | Scalar, ...]


def carry_sums(statements: Sequence[Statement], uses: Uses) -> list[Statement]:
    """The statements, in which operands of sums are computed with the sum so far."""
    state = _State(list(statements), uses)
    for position, statement in enumerate(statements):
        if isinstance(statement, Definition) and _may_carry(statement, uses):
            state.carry(position)
    return state.statements


# --- private ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum of two loads of one place, and of what; form: itself, without the place."""

    node: Scalar
    first: Load
    second: Load
    form: Scalar

    def other(self, buffer: Buffer) -> Buffer:
        return self.first.buffer if self.second.buffer is buffer else self.second.buffer


@dataclass(slots=True)
class _State:
    """made: where the last definition or call is that makes a buffer. sums: of the statements
    that were looked at."""

    statements: list[Statement]
    uses: Uses
    made: dict[Buffer, int] = field(default_factory=dict)
    sums: dict[int, list[_Sum]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, statement in enumerate(self.statements):
            for buffer in _written(statement):
                self.made[buffer] = number

    def carry(self, position: int) -> None:
        """Have a definition compute the sum so far and its own value, if that is all that is
        read of it."""
        definition = self._definition(position)
        target = definition.target
        readers = self.uses.readers(target)
        if not readers or not self._sums_with(target, readers[0]):
            return
        found = {reader: self._sums_with(target, reader) for reader in readers}
        forms = {sum_.form for sums in found.values() for sum_ in sums}
        partners = {sum_.other(target) for sums in found.values() for sum_ in sums}
        if len(forms) != 1 or len(partners) != 1:
            return
        (form,), (partner,) = forms, partners
        if not _holds(partner, target) or not self._is_there(partner, position):
            return
        made = {reader: self._reading(reader, sums, target) for reader, sums in found.items()}
        if not self._is_all(definition, found, made):
            return
        self.statements[position] = _with_sum(definition, form, partner)
        self.sums.pop(position, None)
        self.uses.add(partner, position)
        for reader, reading in made.items():
            self.statements[reader] = reading
            self.sums.pop(reader)
            if all(load.buffer is not partner for load in loads(reading.body)):
                self.uses.forget(partner, reader)

    def _definition(self, position: int) -> Definition:
        statement = self.statements[position]
        assert isinstance(statement, Definition)
        return statement

    def _sums_with(self, buffer: Buffer, reader: int) -> list[_Sum]:
        """The sums in a statement that the buffer is an operand of."""
        if reader not in self.sums:
            self.sums[reader] = list(_sums(self._definition(reader).body))
        return [
            s
            for s in self.sums[reader]
            if buffer in (s.first.buffer, s.second.buffer) and s.node.dtype == buffer.dtype
        ]

    def _is_there(self, partner: Buffer, position: int) -> bool:
        """Whether the sum so far is there before all that a definition reads: its kernel does not
        have to wait for it. What it reads may get further regions behind it."""
        made = self.made.get(partner)
        if made is None or made >= position:
            return False
        read = {load.buffer for load in loads(self._definition(position).body)}
        return any(made <= self.made.get(buffer, -1) for buffer in read)

    def _reading(self, reader: int, sums: Sequence[_Sum], target: Buffer) -> Definition:
        definition = self._definition(reader)
        return replace(definition, body=_without(definition.body, sums, target))

    def _is_all(
        self,
        definition: Definition,
        found: dict[int, list[_Sum]],
        made: dict[int, Definition],
    ) -> bool:
        """Whether the buffer is read in these sums alone, and as many elements as it has. made:
        the readers with one load in the place of each sum."""
        read = 0
        for reader, sums in found.items():
            left = [x for x in loads(made[reader].body) if x.buffer is definition.target]
            if len(left) > len(sums):
                return False
            places = {sum_.first.coordinates for sum_ in sums}
            read += sum(_elements(place, made[reader]) for place in places)
        return read >= estimated(size for _, size in definition.axes)


def _written(statement: Statement) -> Iterable[Buffer]:
    if isinstance(statement, Definition):
        return (statement.target,)
    return [buffer for buffer in statement.outputs if buffer is not None]


def _may_carry(definition: Definition, uses: Uses) -> bool:
    """Whether a definition is all of a buffer that the program's own loops alone read."""
    if isinstance(definition.body, (Reduce, Scatter)) or uses.is_needed_outside(definition.target):
        return False
    if not uses.is_single_definition(definition.target):
        return False
    axes = iter(definition.axes)
    for coordinate, size in zip(definition.store, definition.target.shape):
        if constant_value(size) == 1 and constant_value(coordinate) == 0:
            continue
        symbol, length = next(axes, (None, 0))
        if symbol is None or coordinate != as_expr(symbol) or as_expr(length) != as_expr(size):
            return False
    return next(axes, None) is None


def _sums(body: Scalar) -> Iterator[_Sum]:
    for node in walk(body):
        inside = node.operand if isinstance(node, Cast) else node
        if not isinstance(inside, Apply) or inside.op != "add":
            continue
        first, second = map(_load, inside.operands)
        if first is None or second is None or first.buffer is second.buffer:
            continue
        if first.coordinates == second.coordinates and _are_plain(first.coordinates):
            yield _Sum(node, first, second, _at(node, ()))


def _load(operand: Scalar) -> Load | None:
    inside = operand.operand if isinstance(operand, Cast) else operand
    return inside if isinstance(inside, Load) else None


def _are_plain(coordinates: Coordinates) -> bool:
    return all(isinstance(coordinate, Expr) for coordinate in coordinates)


def _at(node: Scalar, place: Coordinates) -> Scalar:
    def moved(inner: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(inner, Load):
            return Load(inner.buffer, place)
        return replace_children(inner, below)

    return rebuild(node, moved)


def _holds(partner: Buffer, target: Buffer) -> bool:
    """Whether each place of the target is one of the partner's."""
    if len(partner.shape) != len(target.shape):
        return False
    for whole, size in zip(partner.shape, target.shape):
        length, most = constant_value(size), constant_value(whole)
        if as_expr(whole) != as_expr(size) and (length is None or most is None or most < length):
            return False
    return True


def _elements(place: Coordinates, definition: Definition) -> int:
    named = frozenset().union(*(symbols(c) for c in place if isinstance(c, Expr)))
    return estimated(size for symbol, size in loops(definition) if symbol in named)


def _without(body: Scalar, sums: Sequence[_Sum], instead: Buffer) -> Scalar:
    """The body with a load in the place of each sum."""
    nodes = {id(sum_.node): sum_ for sum_ in sums}

    def carried(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        sum_ = nodes.get(id(node))
        if sum_ is not None:
            return Load(instead, sum_.first.coordinates)
        return replace_children(node, below)

    return rebuild(body, carried)


def _with_sum(definition: Definition, form: Scalar, partner: Buffer) -> Definition:
    """The definition, its body added to the sum so far at the same place."""

    def filled(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(node, Load):
            return Load(partner, definition.store) if node.buffer is partner else definition.body
        return replace_children(node, below)

    return replace(definition, body=rebuild(form, filled))
