"""Rematerializes cheap values before a late reader, so that their memory is free in between.

    y = relu((x - m) * s)            y = relu((x - m) * s)
    z = conv(y, w)                   z = conv(y, w)
    ...                      ->      ...
    ... x, m, s ...                  y' = relu((x - m) * s)
    g = conv_backward(h, y, w)       g = conv_backward(h, y', w)

In a training step the forward's values wait for the backward. What is cheap to compute out of
values that wait anyway does not have to: the input of a convolution behind a batch norm, the result
of a layer norm. Chosen is only what is alive where most memory is taken, and of which all that it
reads is alive when it is read again: nothing is kept for it but what is small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

from braze.frozen import frozen
from braze.ir.kernels.loops import (
    Buffer,
    Definition,
    ExternCall,
    InRange,
    Load,
    LoopProgram,
    Reduce,
    Scalar,
    Statement,
)
from braze.ir.kernels.scalars import loads, rebuild, replace_children, walk
from braze.schedule.analysis.cost import distinct_loads, is_heavy, operations
from braze.schedule.analysis.uses import extern_reading, extern_reads, may_alias
from braze.schedule.memory.allocate import size_of
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import constant_value

_LEAST_PEAK = 1 << 22  # bytes: below, memory is no matter
_LEAST_SHARE = 2048  # of the peak, that a value has to take
_SMALL = 64  # one of that many: may be kept for it
_MOST_OPERATIONS = 24
_MOST_LOADS = 8


@final
@frozen
class Later:
    """statements: with what is computed once more. targets: the values that are: their kernels
    come behind the extern call before them."""

    statements: list[Statement]
    targets: frozenset[Buffer]


@dataclass(slots=True)
class Lives:
    """When buffers are made and read; those that the program sees are there for good."""

    program: LoopProgram
    statements: Sequence[Statement]
    made: dict[Buffer, list[int]] = field(default_factory=dict)
    read: dict[Buffer, list[int]] = field(default_factory=dict)
    given: set[Buffer] = field(default_factory=set)
    visible: set[Buffer] = field(default_factory=set)

    def __post_init__(self) -> None:
        program = self.program
        self.given = {*program.inputs, *(buffer for buffer, _ in program.constants)}
        self.visible = {view.buffer for view in program.outputs}
        self.visible |= {view.buffer for _, view in program.mutations}
        for number, statement in enumerate(self.statements):
            for buffer in _written(statement):
                self.made.setdefault(buffer, []).append(number)
            for buffer in dict.fromkeys(_read(statement)):
                self.read.setdefault(buffer, []).append(number)
            if isinstance(statement, ExternCall) and may_alias(statement):
                self.visible.update(_read(statement))

    def peak(self, with_results: bool = False) -> tuple[int, int]:
        """The statement at which most bytes are alive, and how many; without what the program
        sees, which is nobody's to shorten: at the end of a first step it is the new state."""
        changes = [0] * (len(self.statements) + 1)
        written = {view.buffer for _, view in self.program.mutations}
        for buffer, places in self.made.items():
            if buffer in written or (buffer in self.visible and not with_results):
                continue
            changes[places[0]] += self.size(buffer)
            if buffer not in self.visible:
                changes[self._last(buffer) + 1] -= self.size(buffer)
        now, most, at = 0, 0, 0
        for number, change in enumerate(changes):
            now += change
            if now > most:
                most, at = now, number
        return at, most

    def size(self, buffer: Buffer) -> int:
        """In bytes; zero where it is not known."""
        return max(0, constant_value(size_of(buffer)) or 0)

    def waits(self, buffer: Buffer, peak: int) -> bool:
        """Whether a buffer is made once, and read before the peak and after it."""
        if len(self.made.get(buffer, ())) != 1 or buffer in self.visible:
            return False
        reads = self.read.get(buffer, [])
        return bool(reads) and reads[0] < peak < reads[-1] and peak not in reads

    def next_read(self, buffer: Buffer, after: int) -> int:
        """Its first reader behind a statement."""
        return next(number for number in self.read[buffer] if number > after)

    def is_there(self, buffer: Buffer, number: int, target: Buffer) -> bool:
        """Whether a buffer is alive at a statement anyway, or small beside another one."""
        if buffer in self.given or buffer in self.visible or self._last(buffer) >= number:
            return True
        return 0 < self.size(buffer) * _SMALL <= self.size(target)

    def _last(self, buffer: Buffer) -> int:
        return max(self.made[buffer][-1], *self.read.get(buffer, [0])[-1:])


def compute_later(program: LoopProgram, statements: Sequence[Statement], names: Names) -> Later:
    """The statements, with values that wait at the peak of memory computed once more."""
    lives = Lives(program, statements)
    peak, size = lives.peak()
    if size < _LEAST_PEAK:
        return Later(list(statements), frozenset())
    chosen: dict[Buffer, Definition] = {}
    for statement in statements[: peak + 1]:
        if isinstance(statement, Definition) and _is_cheap(statement.body):
            target = statement.target
            if lives.size(target) * _LEAST_SHARE < size or not lives.waits(target, peak):
                continue
            again = lives.next_read(target, peak)
            reads = {load.buffer for load in loads(statement.body)}
            if reads.isdisjoint(chosen) and all(lives.is_there(b, again, target) for b in reads):
                chosen[target] = statement
    return _with_copies(statements, chosen, lives, peak, names)


# --- private ---------------------------------------------------------------------------------


def _is_cheap(body: Scalar) -> bool:
    if isinstance(body, Reduce) or is_heavy(body) or operations(body) > _MOST_OPERATIONS:
        return False
    return len(distinct_loads(body)) <= _MOST_LOADS and not any(
        isinstance(node, InRange) for node in walk(body)
    )


def _with_copies(
    statements: Sequence[Statement],
    chosen: dict[Buffer, Definition],
    lives: Lives,
    peak: int,
    names: Names,
) -> Later:
    places: dict[int, list[Buffer]] = {}
    for buffer in chosen:
        places.setdefault(lives.next_read(buffer, peak), []).append(buffer)
    others: dict[Buffer, Buffer] = {}
    made: list[Statement] = []
    for number, statement in enumerate(statements):
        for buffer in places.get(number, ()):
            others[buffer] = replace(buffer, name=f"{names.buffer(buffer, ()).name}_{buffer.name}")
            made.append(replace(chosen[buffer], target=others[buffer]))
        made.append(_reading(statement, others) if number > peak and others else statement)
    return Later(made, frozenset(others.values()))


def _written(statement: Statement) -> Iterable[Buffer]:
    if isinstance(statement, Definition):
        return (statement.target,)
    return [buffer for buffer in statement.outputs if buffer is not None]


def _read(statement: Statement) -> Iterator[Buffer]:
    if isinstance(statement, Definition):
        return (load.buffer for load in loads(statement.body))
    return extern_reads(statement)


def _reading(statement: Statement, others: dict[Buffer, Buffer]) -> Statement:
    """The statement, which reads other buffers."""
    if others.keys().isdisjoint(_read(statement)):
        return statement

    def moved(node: Scalar, below: Any) -> Scalar:
        found = replace_children(node, below)
        if isinstance(found, Load) and found.buffer in others:
            return replace(found, buffer=others[found.buffer])
        return found

    if isinstance(statement, Definition):
        return replace(statement, body=rebuild(statement.body, moved))
    return extern_reading(statement, others)
