"""Def-use information: which definitions write and read each buffer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from braze.ir.graphs.op_effects import is_asynchronous
from braze.ir.kernels.loops import (
    Buffer,
    BufferView,
    Definition,
    ExternCall,
    LoopProgram,
    Statement,
)
from braze.ir.kernels.scalars import loads


@dataclass(slots=True)
class Uses:
    """Positions of statements by the buffer that they read; kept up to date while inlining."""

    outside: set[Buffer] = field(default_factory=set)
    definitions: dict[Buffer, int] = field(default_factory=dict)
    reading: dict[Buffer, list[int]] = field(default_factory=dict)  # a set takes 200 bytes

    def readers(self, buffer: Buffer) -> list[int]:
        """Positions of the definitions that load from the buffer, in order."""
        return sorted({*self.reading.get(buffer, ())})

    def is_needed_outside(self, buffer: Buffer) -> bool:
        """Whether an output, a mutation or an extern call needs the buffer in memory."""
        return buffer in self.outside

    def is_single_definition(self, buffer: Buffer) -> bool:
        """Whether exactly one definition writes the buffer."""
        return self.definitions.get(buffer) == 1

    def add(self, buffer: Buffer, position: int) -> None:
        """The definition there loads from the buffer."""
        self.reading.setdefault(buffer, []).append(position)

    def forget(self, buffer: Buffer, position: int) -> None:
        """The definition there loads from the buffer no longer."""
        self.reading[buffer] = [p for p in self.reading[buffer] if p != position]

    def move(self, definition: Definition, readers: Sequence[int]) -> None:
        """What the inlined definition read is now read by its readers."""
        self.reading.pop(definition.target, None)
        for load in loads(definition.body):
            self.reading.setdefault(load.buffer, []).extend(readers)


def find_uses(program: LoopProgram, statements: Sequence[Statement]) -> Uses:
    """The uses in `statements`, and of the program's outputs and mutations."""
    uses = Uses()
    uses.outside |= {view.buffer for view in program.outputs}
    uses.outside |= {view.buffer for _, view in program.mutations}
    for position, statement in enumerate(statements):
        if isinstance(statement, ExternCall):
            uses.outside |= set(extern_reads(statement))
            continue
        uses.definitions[statement.target] = uses.definitions.get(statement.target, 0) + 1
        for load in loads(statement.body):
            uses.add(load.buffer, position)
    return uses


def may_alias(call: ExternCall) -> bool:
    """Whether somebody may refer to what it reads after the call: its results may be views of
    that, or it is a collective under way."""
    op = call.op
    return is_asynchronous(op) or any(r.alias_info is not None for r in op._schema.returns)


def extern_reading(call: ExternCall, others: dict[Buffer, Buffer]) -> ExternCall:
    """The call, which reads other buffers in the place of some."""
    args = tuple([_argument(value, others) for value in call.args])
    kwargs = tuple([(name, _argument(value, others)) for name, value in call.kwargs])
    return replace(call, args=args, kwargs=kwargs)


def extern_reads(call: ExternCall) -> Iterator[Buffer]:
    """The buffers among the arguments of an extern call."""
    yield from _buffers(call.args)
    yield from _buffers([value for _, value in call.kwargs])


def _buffers(arguments: Iterable[object]) -> Iterator[Buffer]:
    for argument in arguments:
        if isinstance(argument, BufferView):
            yield argument.buffer
        elif isinstance(argument, (list, tuple)):
            yield from _buffers(argument)


def _argument(value: object, others: dict[Buffer, Buffer]) -> object:
    if isinstance(value, BufferView):
        return replace(value, buffer=others.get(value.buffer, value.buffer))
    if isinstance(value, (list, tuple)):
        return type(value)([_argument(item, others) for item in value])
    return value
