"""An SMT solver proves that loads and stores of loop programs and kernels are in their buffers.

Conditions that guard a value are assumed where it is evaluated; positions that are looked up are
any number, and in range only where `InRange` says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import z3

from braze.ir.kernels.loops import (
    Apply,
    Buffer,
    Cast,
    Definition,
    Guarded,
    Index,
    InRange,
    Literal,
    Load,
    LoopProgram,
    Reduce,
    Scalar,
)
from braze.ir.kernels.scalars import children
from braze.ir.kernels.schedule import Kernel, Schedule, Store
from braze.shapes.expr import Expr, IntLike, Symbol, symbols
from tests.unit.shapes.smt import counterexample, in_ranges, meaning

Term: TypeAlias = Any
Place: TypeAlias = tuple[Buffer, Sequence[Expr | Scalar]]
_COMPARISONS = {
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
}
_NUMBERS = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b}
_TRUTHS = {"and": z3.And, "or": z3.Or}


class Prover:
    """proved: how many places were. wrong: words for those that may lie outside."""

    def __init__(self) -> None:
        self.proved = 0
        self.wrong: list[str] = []
        self._fresh = itertools.count()
        self._terms: dict[int, Term] = {}
        self._kept: list[Scalar] = []
        self._known: list[Term] = []

    def program(self, program: LoopProgram) -> None:
        """All places of a loop program."""
        for statement in program.statements:
            if isinstance(statement, Definition):
                axes = [*statement.axes]
                body = statement.body
                assumed = _points(axes)
                self.place(statement.target, statement.store, assumed)
                self.value(body, assumed)

    def schedule(self, made: Schedule) -> None:
        """All places in memory of a schedule's kernels."""
        for step in made.steps:
            if not isinstance(step, Kernel):
                continue
            memory = {*step.memory}
            for phase in step.phases:
                whole = _points([*step.rows, *phase.loops])
                for store in phase.body:
                    self._stored(store, whole, memory)
                for store in phase.row:
                    self._stored(store, _points(step.rows), memory)
            for column in step.columns:
                loops = [loop for phase in step.phases for loop in phase.loops]
                self.value(column.body, _points([*step.rows, *loops]), memory)

    def _stored(self, store: Any, assumed: list[Term], memory: set[Buffer]) -> None:
        value = store.value if isinstance(store, Store) else store.body
        if isinstance(store, Store) and store.target in memory:
            self.place(store.target, store.coordinates, assumed)
        self.value(value, assumed, memory)

    def value(self, scalar: Scalar, assumed: list[Term], memory: set[Buffer] | None = None) -> None:
        """All loads that a scalar makes, each under what guards it."""
        pending: list[tuple[Scalar, list[Term]]] = [(scalar, assumed)]
        while pending:
            node, here = pending.pop()
            if isinstance(node, Guarded):
                holds = self.truth(node.condition)
                pending += [(node.condition, here), (node.value, [*here, holds])]
                pending.append((node.other, [*here, z3.Not(holds)]))
                continue
            if isinstance(node, Reduce):
                here = [*here, *_points(node.axes)]
            if isinstance(node, Load) and (memory is None or node.buffer in memory):
                self.place(node.buffer, node.coordinates, here)
            pending += [(below, here) for below in children(node)]

    def place(
        self, buffer: Buffer, coordinates: Sequence[Expr | Scalar], assumed: list[Term]
    ) -> None:
        """One element of a buffer."""
        terms = [
            meaning(c) if isinstance(c, Expr) else self.number(c)  # type: ignore[arg-type]
            for c in coordinates
        ]
        inside = [z3.And(t >= 0, t < _size(n)) for t, n in zip(terms, buffer.shape, strict=True)]
        named = {s for c in coordinates if isinstance(c, Expr) for s in symbols(c)}
        named |= {s for n in buffer.shape if isinstance(n, Expr) for s in symbols(n)}
        facts = [*assumed, *self._known, *in_ranges(named)]
        found = counterexample(z3.And(*inside), facts)
        if found is None:
            self.proved += 1
        else:
            self.wrong.append(f"{buffer.name}{[*map(str, coordinates)]} at {found}")

    def number(self, scalar: Scalar) -> Term:
        """The term of a whole number."""
        found = self._terms.get(id(scalar))
        if found is None:
            self._kept.append(scalar)
            found = self._terms[id(scalar)] = self._number(scalar)
        return found

    def _number(self, scalar: Scalar) -> Term:
        if isinstance(scalar, Index):
            self._known += in_ranges(symbols(scalar.expr))
            return meaning(scalar.expr)
        if isinstance(scalar, Literal) and type(scalar.value) is int:
            return z3.IntVal(scalar.value)
        if isinstance(scalar, Cast) and not scalar.operand.dtype.is_floating_point:
            return self.number(scalar.operand)
        if isinstance(scalar, Apply) and scalar.op in _NUMBERS:
            return _NUMBERS[scalar.op](*map(self.number, scalar.operands))
        if isinstance(scalar, Apply) and scalar.op == "where":
            condition, one, other = scalar.operands
            return z3.If(self.truth(condition), self.number(one), self.number(other))
        term = z3.Int(f"${next(self._fresh)}")
        if isinstance(scalar, InRange):
            self._known += [term >= 0, term < _size(scalar.size)]
        return term

    def truth(self, scalar: Scalar) -> Term:
        """The term of a condition; any truth where it depends on data."""
        if isinstance(scalar, Literal):
            return z3.BoolVal(bool(scalar.value))
        if isinstance(scalar, Apply) and scalar.op in _TRUTHS:
            return _TRUTHS[scalar.op](*map(self.truth, scalar.operands))
        if isinstance(scalar, Apply) and scalar.op == "not":
            return z3.Not(self.truth(scalar.operands[0]))
        compares = isinstance(scalar, Apply) and scalar.op in _COMPARISONS
        if compares and not any(x.dtype.is_floating_point for x in scalar.operands):
            return _COMPARISONS[scalar.op](*map(self.number, scalar.operands))
        return z3.Bool(f"${next(self._fresh)}")


def _points(loops: Iterable[tuple[Symbol, IntLike]]) -> list[Term]:
    found: list[Term] = []
    for symbol, size in loops:
        found += [z3.Int(symbol.name) >= 0, z3.Int(symbol.name) < _size(size)]
        found += in_ranges(symbols(size))
    return found


def _size(size: IntLike) -> Term:
    return meaning(size)
