"""Checks a loop program: definitions before uses, dtypes, declared symbols, provable ranges.

Raises InvalidLoops, which names the statement and the user's line. Not checked: that regions
cover their target, and ranges that interval arithmetic cannot decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch

from braze.ir.kernels.loops import (
    SCALAR_OPS,
    Apply,
    Buffer,
    BufferView,
    Cast,
    Definition,
    ExternCall,
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
from braze.ir.kernels.print_loops import print_statement
from braze.ir.kernels.scalars import COMPUTE_DTYPES
from braze.ir.passes import InvalidProgram
from braze.shapes.expr import ZERO, Expr, Symbol, bounds, symbols

_HALF = frozenset(COMPUTE_DTYPES)
_FOLDS = frozenset({"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"})


class InvalidLoops(InvalidProgram):
    """A loop program breaks a rule of `braze.ir.kernels.loops`; a bug in whoever made it."""


@final
@dataclass(slots=True)
class _Known:
    """What has been seen: buffers with data, open targets with their regions."""

    ready: set[Buffer] = field(default_factory=set)
    regions: dict[Buffer, list[Definition]] = field(default_factory=dict)
    read: set[Buffer] = field(default_factory=set)
    size_symbols: set[Symbol] = field(default_factory=set)
    is_scheduled: bool = False


def verify_loops(program: LoopProgram) -> None:
    """Raise InvalidLoops where the program breaks a rule."""
    _verify(program, _Known(set(program.inputs) | {buffer for buffer, _ in program.constants}))


def verify_statements(program: LoopProgram, statements: Sequence[Statement]) -> None:
    """The same of statements on their way through the schedule, in the place of the program's.
    There a buffer may be written to again, by what is scattered into it or lies in a part of it
    that nobody has read; and loops that became one walk over several dimensions by the last one's
    coordinate."""
    known = _Known(set(program.inputs) | {buffer for buffer, _ in program.constants})
    known.is_scheduled = True
    _verify(replace(program, statements=tuple(statements)), known)


# --- private ---------------------------------------------------------------------------------


def _verify(program: LoopProgram, known: _Known) -> None:
    for buffer in program.inputs:
        for size in (*buffer.shape, *buffer.stride):
            known.size_symbols |= symbols(size)
    known.size_symbols |= program.sizes.symbols()
    for statement in program.statements:
        if isinstance(statement, ExternCall) and statement.computes is not None:
            known.size_symbols.add(statement.computes)
    for statement in program.statements:
        try:
            _verify_statement(statement, known)
        except InvalidLoops as error:
            text = print_statement(statement)
            raise InvalidLoops(f"{error}\n  in {text}\n  from {statement.origin}") from None
    for view in (*program.outputs, *(view for _, view in program.mutations)):
        _require(view.buffer in known.ready, f"result {view.buffer} is never computed")
    for target, _ in program.mutations:
        _require(target in program.inputs, f"{target} is written back but is no input")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidLoops(message)


def _verify_statement(statement: Statement, known: _Known) -> None:
    if isinstance(statement, ExternCall):
        for buffer in _buffers_in([*statement.args, *(v for _, v in statement.kwargs)]):
            _require(buffer in known.ready, f"{buffer} is read before it is computed")
            known.read.add(buffer)
        for output in statement.outputs:
            if output is not None:
                again = output in known.ready and not known.is_scheduled
                _require(not again, f"{output} is computed twice")
                known.ready.add(output)
        return
    _verify_definition(statement, known)


def _buffers_in(arguments: Iterable[object]) -> Iterable[Buffer]:
    for argument in arguments:
        if isinstance(argument, BufferView):
            yield argument.buffer
        elif isinstance(argument, (list, tuple)):
            yield from _buffers_in(argument)


def _verify_definition(definition: Definition, known: _Known) -> None:
    target = definition.target
    others = known.regions.setdefault(target, [])
    if not known.is_scheduled:
        _require(bool(others) or target not in known.ready, f"{target} is computed twice")
        _require(target not in known.read, f"{target} is written after it was read")
    _require(len(definition.store) == len(target.shape), "store has another rank than the target")
    axes = dict(definition.axes)
    _require(len(axes) == len(definition.axes), "an axis appears twice")
    if 0 not in axes.values():
        _verify_coordinates(definition.store, target, set(axes), known, is_guarded=False)
        for other in others:
            if isinstance(definition.body, Scatter):
                break
            fixed = _has_fixed_place(definition, known) and _has_fixed_place(other, known)
            apart = not fixed or _are_disjoint(definition, other)
            _require(apart, "regions of one target overlap")
    _require(
        definition.body.dtype == target.dtype,
        f"{target} is {target.dtype}, its definition {definition.body.dtype}",
    )
    visitor = _Visitor(set(axes), known, 0 in axes.values())
    if isinstance(definition.body, Scatter):
        _verify_scatter(definition, definition.body, visitor)
    else:
        visitor.visit(definition.body, may_fold=True)
    others.append(definition)
    known.ready.add(target)


def _verify_scatter(definition: Definition, body: Scatter, visitor: _Visitor) -> None:
    target = definition.target
    _require(body.kind in ("set", "add"), f"no scatter {body.kind}")
    _require(target in visitor.known.ready, f"{target} has no contents to scatter into")
    _require(len(body.positions) == len(target.shape), "positions have another rank")
    for position, coordinate in zip(body.positions, definition.store, strict=True):
        if position is not None:
            _require(position.dtype == torch.int64, f"a position is {position.dtype}")
            _require(coordinate == ZERO, "a coordinate beside a position that is looked up")
            visitor.visit(position)
    visitor.visit(body.value)


def _has_fixed_place(definition: Definition, known: _Known) -> bool:
    """Whether the region is at a place, and of a size, that no symbol moves."""
    named = set().union(*map(symbols, definition.store))
    return known.size_symbols.isdisjoint(named) and all(
        isinstance(size, int) for _, size in definition.axes
    )


def _are_disjoint(a: Definition, b: Definition) -> bool:
    """False only where both regions are boxes of step one that provably meet."""
    for first, second in zip(a.store, b.store, strict=True):
        (low, high), (other_low, other_high) = bounds(first), bounds(second)
        if low is None or high is None or other_low is None or other_high is None:
            return True
        if not _is_unit(first, second):
            return True
        if high < other_low or other_high < low:
            return True
    return 0 in (size for _, size in (*a.axes, *b.axes))


def _is_unit(*coordinates: Expr) -> bool:
    terms = itertools.chain.from_iterable(c.terms for c in coordinates)
    return all(not monomial or coefficient == 1 for monomial, coefficient in terms)


def _verify_coordinates(
    coordinates: Sequence[Expr | Scalar],
    buffer: Buffer,
    scope: set[Symbol],
    known: _Known,
    is_guarded: bool,
) -> None:
    is_guarded = is_guarded or known.is_scheduled
    for n, (coordinate, size) in enumerate(zip(coordinates, buffer.shape, strict=True)):
        if not isinstance(coordinate, Expr):
            _require(coordinate.dtype == torch.int64, f"coordinate {n} is {coordinate.dtype}")
            continue
        loose = symbols(coordinate) - scope - known.size_symbols
        _require(not loose, f"{', '.join(map(str, loose))} of {buffer} is no axis")
        if (
            is_guarded
            or known.is_scheduled
            or not isinstance(size, int)
            or not _is_affine(coordinate)
        ):
            continue
        if symbols(coordinate) & known.size_symbols:  # whose axes' sizes depend on them, too
            continue
        low, high = bounds(coordinate)
        inside = low is not None and low >= 0 and high is not None and high < size
        _require(inside, f"coordinate {n} of {buffer}, {coordinate}, leaves [0, {size})")


def _is_affine(coordinate: Expr) -> bool:
    """Interval arithmetic is exact for these, each symbol standing once."""
    return all(
        not monomial or (len(monomial) == 1 and isinstance(monomial[0], Symbol))
        for monomial, _ in coordinate.terms
    )


@final
@dataclass(slots=True)
class _Visitor:
    scope: set[Symbol]
    known: _Known
    is_empty: bool

    def visit(self, scalar: Scalar, may_fold: bool = False, is_guarded: bool = False) -> None:
        """Check one node and all below."""
        if isinstance(scalar, Load):
            self._visit_load(scalar, is_guarded)
        elif isinstance(scalar, Reduce):
            self._visit_reduce(scalar, may_fold, is_guarded)
        elif isinstance(scalar, Apply):
            _verify_apply(scalar)
            for operand in scalar.operands:
                self.visit(operand, may_fold, is_guarded)
        elif isinstance(scalar, Cast):
            self.visit(scalar.operand, may_fold, is_guarded)
        elif isinstance(scalar, Guarded):
            _require(scalar.condition.dtype == torch.bool, "a guard's condition is no bool")
            _require(scalar.value.dtype == scalar.other.dtype, "a guard's sides differ in dtype")
            self.visit(scalar.condition, is_guarded=is_guarded)
            self.visit(scalar.value, is_guarded=True)
            self.visit(scalar.other, is_guarded=is_guarded)
        elif isinstance(scalar, InRange):
            _require(scalar.operand.dtype == torch.int64, "a checked index is no int64")
            self.visit(scalar.operand, is_guarded=is_guarded)
        elif isinstance(scalar, Index):
            loose = symbols(scalar.expr) - self.scope - self.known.size_symbols
            _require(not loose, f"{', '.join(map(str, loose))} is no axis")
        elif isinstance(scalar, Scatter):
            raise InvalidLoops("a scatter below the root of a body")
        else:
            _verify_literal(scalar)

    def _visit_load(self, scalar: Load, is_guarded: bool) -> None:
        buffer = scalar.buffer
        _require(buffer in self.known.ready, f"{buffer} is read before it is computed")
        self.known.read.add(buffer)
        _require(len(scalar.coordinates) == len(buffer.shape), f"load of {buffer} has another rank")
        guarded = is_guarded or self.is_empty
        _verify_coordinates(scalar.coordinates, buffer, self.scope, self.known, guarded)
        for coordinate in scalar.coordinates:
            if not isinstance(coordinate, Expr):
                self.visit(coordinate, is_guarded=is_guarded)

    def _visit_reduce(self, scalar: Reduce, may_fold: bool, is_guarded: bool) -> None:
        _require(may_fold, "a fold below something other than Cast or Apply")
        _require(scalar.kind in _FOLDS, f"no fold {scalar.kind}")
        axes = {symbol for symbol, _ in scalar.axes}
        _require(not axes & self.scope, "a fold's axis is an axis already")
        if scalar.kind in ("argmax", "argmin"):
            _require(scalar.dtype == torch.int64, "a position is no int64")
        else:
            _require(scalar.dtype == scalar.body.dtype, "a fold changes the dtype")
        _require(scalar.dtype not in _HALF, "a fold accumulates in a half type")
        is_empty = self.is_empty or 0 in (size for _, size in scalar.axes)
        _Visitor(self.scope | axes, self.known, is_empty).visit(scalar.body, False, is_guarded)


def _verify_literal(scalar: Literal) -> None:
    kind = float if scalar.dtype.is_floating_point else int
    expected = bool if scalar.dtype == torch.bool else kind
    _require(type(scalar.value) is expected, f"{scalar.value!r} as a literal of {scalar.dtype}")


_DOMAINS: dict[str, Callable[[torch.dtype], bool]] = {
    "float": lambda dtype: dtype.is_floating_point and dtype not in _HALF,
    "integer": lambda dtype: not dtype.is_floating_point and dtype != torch.bool,
    "bool": lambda dtype: dtype == torch.bool,
    "number": lambda dtype: dtype != torch.bool and dtype not in _HALF,
    "bits": lambda dtype: not dtype.is_floating_point,
    "any": lambda dtype: dtype not in _HALF,
}


def _verify_apply(scalar: Apply) -> None:
    row = SCALAR_OPS.get(scalar.op)
    _require(row is not None, f"no scalar operator {scalar.op}")
    assert row is not None
    _require(len(scalar.operands) == row.arity, f"{scalar.op} takes {row.arity} operands")
    operands = scalar.operands[1:] if scalar.op == "where" else scalar.operands
    dtypes = {operand.dtype for operand in operands}
    _require(len(dtypes) == 1, f"{scalar.op} of {', '.join(map(str, dtypes))}")
    dtype = dtypes.pop()
    if scalar.op != "where":  # a choice is exact in half types, too
        _require(_DOMAINS[row.domain](dtype), f"{scalar.op} does not take {dtype}")
    else:
        _require(scalar.operands[0].dtype == torch.bool, "where asks a number")
    result = torch.bool if row.result == "bool" else dtype
    _require(scalar.dtype == result, f"{scalar.op} gives {result}, not {scalar.dtype}")
