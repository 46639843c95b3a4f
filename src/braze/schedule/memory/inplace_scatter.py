"""Scatters in place where nothing else reads the old contents, instead of into a copy.

    b4[i0] = b0[i0]                             b0[0] for i0 < 3 = set at [b1[i0]]: b2[i0]
    b4[0] for i0 < 3 = set at [..]: b2[i0]  ->
    mutate b0 = b4

    b4 = aten.index_put(b3, [b1], b2, True)  ->  b3 = aten.index_put(b3, [b1], b2, True)

A cache of a thousand positions is not copied for one, nor what a library call made for the sums
that are added to it.

An input is written to before the program is through, so what faults later finds it changed, and
eager kernels run the program once more, from its beginning. That gives the same again where values
are set (not added to what is there) at places and by values that no earlier contents decide: the
program reads the input at no time before, and its copy only behind the last scatter. On the CPU a
bad index is met before anything is written, by a kernel that checks all of them (`positions`).

Refused: what is read later as it was, and what the caller has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import final

from braze.frozen import frozen
from braze.ir.kernels.loops import (
    Buffer,
    BufferView,
    Definition,
    ExternCall,
    InRange,
    Load,
    LoopProgram,
    Scalar,
    Scatter,
    Statement,
)
from braze.ir.kernels.scalars import loads, rebuild, replace_children, substitute_symbols, walk
from braze.ir.types import Size
from braze.schedule.analysis.scatter import is_scatter
from braze.schedule.analysis.uses import extern_reads, may_alias
from braze.schedule.memory.extern_out import IN_PLACE_FORMS
from braze.schedule.simplify.early_index_checks import symbols_in
from braze.schedule.simplify.normalize import Names
from braze.schedule.target import Target
from braze.shapes.expr import ZERO, Symbol, as_expr, constant_value


@final
@frozen
class Scattered:
    """The program and its statements, some buffers in the place of others. inputs: those that are
    written to. positions: buffers of indices in range, which kernels of their own check."""

    program: LoopProgram
    statements: list[Statement]
    inputs: tuple[Buffer, ...] = ()
    positions: frozenset[Buffer] = frozenset()


def scatter_in_place(
    program: LoopProgram, statements: Sequence[Statement], names: Names, target: Target
) -> Scattered:
    """The statements, as few copies as can be made for what is scattered."""
    found = _Search(program, list(statements), _scatters_by_target(statements))
    for number in range(len(statements) - 1, -1, -1):
        found.try_copy(number)
        found.try_call(number)
    if not found.dropped:
        return Scattered(program, found.statements)
    kept = [s for n, s in enumerate(found.statements) if n not in found.dropped]
    inputs = tuple(found.inputs)
    if not target.orders_scatters or not inputs:
        return Scattered(found.program, kept, inputs)
    made: list[Statement] = []
    positions: set[Buffer] = set()
    for statement in kept:
        if isinstance(statement, Definition) and statement.target in found.inputs:
            checks, statement = _checked_before(statement, names)
            positions |= {check.target for check in checks}
            made += checks
        made.append(statement)
    return Scattered(found.program, made, inputs, frozenset(positions))


# --- private ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _Search:
    """Copies are tried from the last to the first: one copy's source may be another's target.

    scatters: the numbers of the statements that scatter into a buffer, in order.
    """

    program: LoopProgram
    statements: list[Statement]
    scatters: dict[Buffer, list[int]]
    dropped: set[int] = field(default_factory=set)
    inputs: dict[Buffer, None] = field(default_factory=dict)

    def try_call(self, number: int) -> None:
        """Let the library call with that number write to what it is given, if nobody else needs
        that: its result is then its first argument."""
        call = self.statements[number]
        if not isinstance(call, ExternCall) or call.op not in IN_PLACE_FORMS:
            return
        view, (made,) = call.args[0], call.outputs
        if made is None or not _is_all(view, view.buffer) or not _is_alike(view.buffer, made):
            return
        source = view.buffer
        later = self.statements[number + 1 :]
        if source in self.program.inputs or not self._is_free(source):
            return
        if list(extern_reads(call)).count(source) > 1 or any(source in _read(s) for s in later):
            return
        self._rename(number + 1, made, source)
        self.statements[number] = replace(call, outputs=(source,))
        self.dropped.add(-1 - number)  # the copy that the call would make

    def try_copy(self, number: int) -> None:
        """Drop the copy with that number if its target can have the source's memory."""
        copy = self.statements[number]
        source = _copied(copy)
        if source is None or not isinstance(copy, Definition):
            return
        scatters = [n for n in self.scatters.get(copy.target, ()) if n > number]
        if not scatters or any(source in _read(s) for s in self.statements[number + 1 :]):
            return
        if source in self.program.inputs:
            if not self._may_write(number, copy.target, source, scatters):
                return
            self.inputs[source] = None
        elif not self._is_free(source):
            return
        self.dropped.add(number)
        self._rename(number, copy.target, source)

    def _is_free(self, source: Buffer) -> bool:
        """Whether the program made a buffer that nobody else sees."""
        program = self.program
        views = [*program.outputs, *(view for _, view in program.mutations)]
        if any(view.buffer is source for view in views):
            return False
        if any(buffer is source for buffer, _ in program.constants):
            return False
        for statement in self.statements:
            if not isinstance(statement, ExternCall) or not may_alias(statement):
                continue
            if source in statement.outputs or source in _read(statement):
                return False
        return True

    def _may_write(self, number: int, made: Buffer, source: Buffer, scatters: list[int]) -> bool:
        """Whether an input may be scattered into, so that doing it twice does no harm."""
        program = self.program
        if any(view.buffer in (made, source) for view in program.outputs):
            return False
        written = [(b, view) for b, view in program.mutations if view.buffer is made or b is source]
        if len(written) != 1:
            return False
        ((receiver, view),) = written
        if receiver is not source or view.buffer is not made or not _is_all(view, made):
            return False
        if any(view.buffer is source for _, view in program.mutations):
            return False
        before = [s for n, s in enumerate(self.statements[: scatters[-1] + 1]) if n != number]
        if any(read in (source, made) for s in before for read in _read(s)):
            return False
        for n in scatters:
            statement = self.statements[n]
            body = statement.body if isinstance(statement, Definition) else None
            if not isinstance(body, Scatter) or body.kind != "set":
                return False
        return True

    def _rename(self, number: int, made: Buffer, source: Buffer) -> None:
        for n in range(number, len(self.statements)):
            self.statements[n] = _renamed(self.statements[n], made, source)
        moved = self.scatters.pop(made, [])
        self.scatters[source] = sorted([*self.scatters.get(source, ()), *moved])

        def view(v: BufferView) -> BufferView:
            return replace(v, buffer=source) if v.buffer is made else v

        program = self.program
        self.program = replace(
            program,
            outputs=tuple(map(view, program.outputs)),
            mutations=tuple([(b, view(v)) for b, v in program.mutations if b not in self.inputs]),
        )


def _copied(statement: Statement) -> Buffer | None:
    """What a definition copies whole, element by element, to a buffer of the same layout."""
    if not isinstance(statement, Definition) or not isinstance(statement.body, Load):
        return None
    source = statement.body.buffer
    if not _is_alike(source, statement.target) or statement.body.coordinates != statement.store:
        return None
    return source if _is_everywhere(statement) else None


def _is_everywhere(definition: Definition) -> bool:
    """Whether a definition without gaps writes each element of its target: others may write a part
    of it, and this one the rest."""
    axes = list(definition.axes)
    for coordinate, size in zip(definition.store, definition.target.shape, strict=True):
        if coordinate == ZERO:
            if constant_value(size) != 1:
                return False
            continue
        if not axes:
            return False
        symbol, count = axes.pop(0)
        if coordinate != as_expr(symbol) or as_expr(count) != as_expr(size):
            return False
    return not axes


def _is_alike(one: Buffer, other: Buffer) -> bool:
    first, second = ((b.dtype, b.shape, b.stride, b.device) for b in (one, other))
    return first == second


def _scatters_by_target(statements: Sequence[Statement]) -> dict[Buffer, list[int]]:
    found: dict[Buffer, list[int]] = {}
    for number, statement in enumerate(statements):
        if isinstance(statement, Definition) and is_scatter(statement):
            found.setdefault(statement.target, []).append(number)
    return found


def _is_all(view: BufferView, buffer: Buffer) -> bool:
    whole = (buffer.shape, buffer.stride, buffer.dtype)
    return view.offset == 0 and (view.shape, view.stride, view.dtype) == whole


def _read(statement: Statement) -> Iterator[Buffer]:
    if isinstance(statement, Definition):
        return (load.buffer for load in loads(statement.body))
    return extern_reads(statement)


def _renamed(statement: Statement, old: Buffer, new: Buffer) -> Statement:
    if isinstance(statement, ExternCall):
        if old not in set(extern_reads(statement)):
            return statement
        args = tuple([_argument(value, old, new) for value in statement.args])
        kwargs = tuple([(name, _argument(value, old, new)) for name, value in statement.kwargs])
        outputs = tuple([new if buffer is old else buffer for buffer in statement.outputs])
        return replace(statement, args=args, kwargs=kwargs, outputs=outputs)

    def moved(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        found = replace_children(node, below)
        if isinstance(found, Load) and found.buffer is old:
            return replace(found, buffer=new)
        return found

    target = new if statement.target is old else statement.target
    return replace(statement, target=target, body=rebuild(statement.body, moved))


def _argument(value: object, old: Buffer, new: Buffer) -> object:
    if isinstance(value, BufferView):
        return replace(value, buffer=new) if value.buffer is old else value
    if isinstance(value, (list, tuple)):
        return type(value)([_argument(item, old, new) for item in value])
    return value


# --- checks ----------------------------------------------------------------------------------


def _checked_before(definition: Definition, names: Names) -> tuple[list[Definition], Definition]:
    """Definitions of the positions that are checked, and the scatter that reads those."""
    body = definition.body
    assert isinstance(body, Scatter)
    checks: list[Definition] = []
    positions: list[Scalar | None] = []
    for position in body.positions:
        if position is None or not any(isinstance(node, InRange) for node in walk(position)):
            positions.append(position)
            continue
        axes = [axis for axis in definition.axes if axis[0] in symbols_in(position)]
        shape: tuple[Size, ...] = tuple([size for _, size in axes])
        made = names.buffer(definition.target, shape, dtype=position.dtype)
        fresh: dict[Symbol, Symbol] = {symbol: names.symbol("p", size) for symbol, size in axes}
        store = tuple([as_expr(symbol) for symbol, _ in axes])
        own = tuple([(fresh[symbol], size) for symbol, size in axes])
        checks.append(
            Definition(
                made,
                own,
                tuple([as_expr(symbol) for symbol, _ in own]),
                substitute_symbols(position, {old: as_expr(new) for old, new in fresh.items()}),
                definition.origin,
            )
        )
        positions.append(Load(made, store))
    return checks, replace(definition, body=replace(body, positions=tuple(positions)))
