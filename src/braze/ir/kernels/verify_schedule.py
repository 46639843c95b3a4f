"""Checks a schedule: what is read has contents, symbols are bound, and memory is what it seems.

    every load of a kernel     of its memory, its scratch, or a value that it made before
    every symbol               of the rows, of the phase's loops, or of the sizes of a call
    every slot                 apart from those of all buffers that are alive at the same time
    every buffer               written by somebody, kept somewhere, not dropped before its last use

Raises InvalidSchedule, which names the step. Not checked: that stores cover what is read, and that
what the kernels compute is what the loop program says; `braze.ir.kernels.run_loops` defines that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from braze.ir.graphs.op_effects import is_asynchronous
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, Index, Load, Reduce, Scalar
from braze.ir.kernels.print_schedule import print_step
from braze.ir.kernels.scalars import walk
from braze.ir.kernels.schedule import (
    Accumulate,
    AttentionGradients,
    AttentionProducts,
    ExternStep,
    Kernel,
    Product,
    Schedule,
    Step,
    Store,
    scatters,
)
from braze.ir.passes import InvalidProgram
from braze.shapes.expr import Expr, Symbol, constant_value, symbols


@final
class InvalidSchedule(InvalidProgram):
    """A schedule breaks a rule of `braze.ir.kernels.schedule`; a bug in whoever made it."""


def verify_schedule(schedule: Schedule) -> None:
    """Raise InvalidSchedule where the schedule breaks a rule."""
    verify_steps(
        schedule.steps,
        given=[*schedule.inputs, *(buffer for buffer, _ in schedule.constants)],
        sizes=schedule.sizes.symbols(),
    )
    made = {b for step in schedule.steps for b in writes(step)}
    ready = made | {*schedule.inputs} | {buffer for buffer, _ in schedule.constants}
    for view in (*schedule.outputs, *(view for _, view in schedule.mutations)):
        _require(view.buffer in ready, f"result {view.buffer} is computed by no step")
    inputs = {*schedule.inputs}
    for buffer in (*schedule.in_place, *(target for target, _ in schedule.mutations)):
        _require(buffer in inputs, f"{buffer} is written back and is no input")
    _verify_writes_to_inputs(schedule)
    _verify_places(schedule)
    _verify_drops(schedule)
    _verify_slots(schedule)


def verify_steps(
    steps: Sequence[Step], given: Iterable[Buffer], sizes: Iterable[Symbol] = ()
) -> None:
    """Raise InvalidSchedule where steps in a row read what nobody gave contents. given: buffers
    that have some before; sizes: symbols that a call binds beside the sizes of its inputs."""
    state = _Contents({*given}, {*sizes})
    for buffer in state.ready:
        state.learn_sizes(buffer)
    for step in steps:
        if isinstance(step, ExternStep) and step.call.computes is not None:
            state.bound.add(step.call.computes)
    for number, step in enumerate(steps):
        try:
            if isinstance(step, Kernel):
                _KernelChecker(step, state).check()
            else:
                _verify_call(step, state)
        except InvalidSchedule as error:
            text = "\n  ".join(print_step(step))
            raise InvalidSchedule(f"step {number}: {error}\n  {text}") from None
        state.ready.update(writes(step))


def reads(step: Step) -> set[Buffer]:
    """The buffers in memory of which a step needs contents."""
    if isinstance(step, ExternStep):
        return _buffers_of_call(step.call)
    own = writes(step)
    stored_over = {store.target for store in scatters(step)} if step.phases else set()
    return {b for b in step.memory if b not in own} | (stored_over & own) | _read_in(step, own)


def writes(step: Step) -> set[Buffer]:
    """The buffers in memory that a step gives contents."""
    if isinstance(step, ExternStep):
        return {b for b in step.call.outputs if b is not None}
    made = {s.target for phase in step.phases for s in (*phase.body, *phase.row)}
    made |= {column.target for column in step.columns}
    if step.spread is not None:
        made |= {step.spread.partials, step.spread.arrivals}
    return made & {*step.memory}


# --- private ---------------------------------------------------------------------------------


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise InvalidSchedule(message)


def _buffers_of_call(call: ExternCall) -> set[Buffer]:
    found: set[Buffer] = set()

    def visit(value: object) -> None:
        if isinstance(value, BufferView):
            found.add(value.buffer)
        elif isinstance(value, (list, tuple)):
            for item in value:
                visit(item)

    visit((call.args, [value for _, value in call.kwargs]))
    return found


def _read_in(kernel: Kernel, own: set[Buffer]) -> set[Buffer]:
    """What the kernel writes and loads before it has written it."""
    if kernel.attention is not None:  # whose result stands for what is loaded of the target
        return set()
    found: set[Buffer] = set()
    made: set[Buffer] = set()
    for phase in kernel.phases:
        for statement in (*phase.body, *phase.row):
            value = statement.value if isinstance(statement, Store) else statement.body
            loaded = {node.buffer for node in walk(value) if isinstance(node, Load)}
            found |= (loaded & own) - made
            made.add(statement.target)
    return found


@final
@dataclass(slots=True)
class _Contents:
    """ready: the buffers with contents. bound: the symbols of sizes that a call knows."""

    ready: set[Buffer]
    bound: set[Symbol] = field(default_factory=set)

    def learn_sizes(self, buffer: Buffer) -> None:
        """The symbols in an input's shape and strides are bound by the call."""
        for size in (*buffer.shape, *buffer.stride):
            self.bound |= symbols(size)


def _verify_call(step: ExternStep, state: _Contents) -> None:
    for buffer in sorted(_buffers_of_call(step.call), key=str):
        _require(buffer in state.ready, f"{buffer} is read before it is written")
    chosen = step.out_op is not None and step.in_place_op is not None
    _require(not chosen, "a call writes into planned memory and in place at once")


@final
class _KernelChecker:
    """Walks one kernel: what it has made so far, and which symbols are bound where."""

    def __init__(self, kernel: Kernel, state: _Contents) -> None:
        self._kernel = kernel
        self._state = state
        self._memory = {*kernel.memory}
        self._inside: set[Buffer] = {*kernel.scratch}  # readable without being memory
        self._touched: set[Buffer] = set()
        self._scope: set[Symbol] = set()

    def check(self) -> None:
        """Raise InvalidSchedule where the kernel breaks a rule."""
        kernel = self._kernel
        _require(len(self._memory) == len(kernel.memory), "a buffer is a parameter twice")
        rows = {symbol for symbol, _ in kernel.rows}
        _require(len(rows) == len(kernel.rows), "two axes of the rows have one symbol")
        if kernel.product is not None:
            self._check_product(kernel.product, rows)
        shared: set[Symbol] = set()
        if kernel.attention is not None:
            shared = {kernel.rows[-1][0]}
            self._check_attention(kernel.attention, rows)
        for phase in kernel.phases:
            loops = {symbol for symbol, _ in phase.loops}
            _require(len(loops) == len(phase.loops), "two loops of a phase have one symbol")
            both = (loops & rows) - shared
            _require(not both, "a loop of a phase is an axis of the rows already")
            self._scope = rows | loops
            self._check_statements(phase.body)
            self._scope = rows
            self._check_statements(phase.row)
        loops_of_all = {symbol for phase in kernel.phases for symbol, _ in phase.loops}
        self._scope = rows | loops_of_all
        for column in kernel.columns:
            self._check_scalar(column.body)
            self._touch(column.target)
        if kernel.spread is not None:
            self._touch(kernel.spread.partials)
            self._touch(kernel.spread.arrivals)
        idle = self._memory - self._touched
        _require(not idle, f"{_names(idle)} is a parameter, and neither read nor written")

    def _check_product(self, product: Product, rows: set[Symbol]) -> None:
        for view, computed in zip((product.first, product.second), product.computed, strict=True):
            if computed is None:
                self._load(view.buffer)
                continue
            self._scope = rows | {symbol for symbol, _ in computed.loops}
            self._check_scalar(computed.value)
        if product.packed is not None:
            self._load(product.packed)
        self._inside.add(product.target)

    def _check_attention(
        self, attention: AttentionProducts | AttentionGradients, rows: set[Symbol]
    ) -> None:
        self._scope = rows - {self._kernel.rows[-1][0]}
        if isinstance(attention, AttentionGradients):
            self._check_gradients(attention, rows)
            return
        for matrix in (attention.query, attention.keys, attention.values):
            self._load(matrix.buffer)
            self._check_symbols((matrix.start,))
        self._inside.add(attention.scores)
        self._scope = rows | {attention.keys_loop[0]}
        self._check_scalar(attention.score)
        self._inside |= {store.target for phase in self._kernel.phases for store in phase.body}
        self._inside |= {b for b in (attention.most, attention.sums) if b is not None}

    def _check_gradients(self, attention: AttentionGradients, rows: set[Symbol]) -> None:
        own = self._kernel.rows[-1][0]
        loops = {attention.queries[0], attention.keys[0]}
        _require(own in loops and len(loops) == 2, "it has rows of neither queries nor keys")
        targets = [store.target for phase in self._kernel.phases for store in phase.body]
        same = targets == [each.target for each in attention.sums]
        _require(same, "its phases do not store its sums")
        matrices = [m for product in attention.products for m in (product.rows, product.columns)]
        for matrix in (*matrices, *(each.matrix for each in attention.sums)):
            self._load(matrix.buffer)
            self._check_symbols((matrix.start,))
        self._inside |= {product.target for product in attention.products}
        self._scope = rows | loops
        for scalar in (attention.visible, *(each.weight for each in attention.sums)):
            if scalar is not None:
                self._check_scalar(scalar)
        self._inside |= {*targets}

    def _check_statements(self, statements: Sequence[Store | Accumulate]) -> None:
        for statement in statements:
            if isinstance(statement, Store):
                self._check_symbols(statement.coordinates)
                self._check_scalar(statement.value)
            else:
                self._check_scalar(statement.body)
                if statement.position is not None:
                    self._check_symbols((statement.position,))
            if statement.target in self._memory:
                self._touch(statement.target)
            self._inside.add(statement.target)

    def _check_scalar(self, scalar: Scalar) -> None:
        for node in walk(scalar):
            if isinstance(node, Load):
                self._load(node.buffer)
                self._check_symbols([c for c in node.coordinates if isinstance(c, Expr)])
            elif isinstance(node, Index):
                self._check_symbols((node.expr,))
            else:
                _require(not isinstance(node, Reduce), "a fold that no phase carries out")

    def _check_symbols(self, coordinates: Iterable[Expr]) -> None:
        for coordinate in coordinates:
            loose = symbols(coordinate) - self._scope - self._state.bound
            _require(not loose, f"{_names(loose)} is bound by no loop")

    def _load(self, buffer: Buffer) -> None:
        if buffer in self._inside:
            self._touched |= {buffer} & self._memory
            return
        _require(buffer in self._memory, f"{buffer} is loaded and is neither parameter nor made")
        _require(buffer in self._state.ready, f"{buffer} is loaded before it is written")
        self._touched.add(buffer)

    def _touch(self, buffer: Buffer) -> None:
        _require(buffer in self._memory, f"{buffer} is written and is no parameter")
        self._touched.add(buffer)


def _names(things: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, things)))


def _verify_writes_to_inputs(schedule: Schedule) -> None:
    """Only inputs that are known to be written in place are, and no step before `settled` does."""
    inputs, known = {*schedule.inputs}, {*schedule.in_place}
    constants = {buffer for buffer, _ in schedule.constants}
    for number, step in enumerate(schedule.steps):
        made = writes(step)
        _require(not made & constants, f"step {number} writes to {_names(made & constants)}")
        unknown = (made & inputs) - known
        _require(not unknown, f"step {number} writes to the input {_names(unknown)} unannounced")
        early = {*_plainly_written(step)} & inputs if number < schedule.settled else set()
        _require(
            not early, f"step {number} writes to {_names(early)} before step {schedule.settled}"
        )


def _plainly_written(step: Step) -> Iterable[Buffer]:
    """What is stored, not scattered: a scatter that runs again writes the same."""
    if isinstance(step, Kernel):
        scattered = {store.target for store in scatters(step)} if step.phases else set()
        yield from writes(step) - scattered


def _verify_places(schedule: Schedule) -> None:
    """Each buffer that a kernel writes has memory before the kernel begins."""
    planned = [buffer for buffer, _ in (*schedule.slots, *schedule.sized)]
    _require(len({*planned}) == len(planned), "a buffer has two slots")
    have = {*planned, *schedule.fresh, *schedule.inputs}
    both = {*planned} & {*schedule.fresh}
    _require(not both, f"{_names(both)} has a slot, and is allocated at each call")
    for number, step in enumerate(schedule.steps):
        if isinstance(step, Kernel):
            homeless = writes(step) - have
            _require(not homeless, f"step {number} writes to {_names(homeless)}, without memory")
        else:
            have |= writes(step)


def _verify_drops(schedule: Schedule) -> None:
    """What is dropped is neither a result nor touched by a later step."""
    results = {view.buffer for view in schedule.outputs}
    results |= {view.buffer for _, view in schedule.mutations}
    for buffer, last in schedule.last_use:
        _require(buffer not in results, f"the result {buffer} is dropped behind step {last}")
        for number in range(last + 1, len(schedule.steps)):
            step = schedule.steps[number]
            used = buffer in writes(step) or buffer in reads(step)
            _require(not used, f"{buffer} is dropped behind step {last}, and step {number} uses it")


def _verify_slots(schedule: Schedule) -> None:
    """No two buffers that are alive together share bytes of the arena."""
    lives = _lives(schedule)
    slots = [(buffer, slot) for buffer, slot in schedule.slots if buffer in lives]
    for buffer, slot in schedule.slots:
        inside = slot.offset >= 0 and slot.offset + slot.size <= schedule.arena_size
        _require(inside, f"{buffer} leaves the arena of {schedule.arena_size} bytes")
        room = _bytes_needed(buffer)
        _require(room is None or room <= slot.size, f"{buffer} needs {room} bytes of {slot.size}")
    alive: list[tuple[int, Buffer, Any]] = []
    for buffer, slot in sorted(slots, key=lambda pair: lives[pair[0]][0]):
        first, last = lives[buffer]
        alive = [entry for entry in alive if entry[0] >= first]
        for _, other, taken in alive:
            apart = (
                slot.offset + slot.size <= taken.offset or taken.offset + taken.size <= slot.offset
            )
            empty = not slot.size or not taken.size
            _require(apart or empty, f"{buffer} and {other} are alive together and share bytes")
        alive.append((last, buffer, slot))
    _verify_sized(schedule, lives)
    shown = _shared_by_calls(schedule) | {view.buffer for view in schedule.outputs}
    exposed = shown & {buffer for buffer, _ in (*schedule.slots, *schedule.sized)}
    _require(not exposed, f"{_names(exposed)} is seen outside, and lies in the arena")


def _verify_sized(schedule: Schedule, lives: dict[Buffer, tuple[int, int]]) -> None:
    """Of two buffers that are alive together one lies behind the other, whatever their sizes."""
    below: list[set[int]] = []
    for place, (buffer, sized) in enumerate(schedule.sized):
        early = all(0 <= other < place for other in sized.behind)
        _require(early, f"{buffer} lies behind a slot that is placed later")
        below.append({*sized.behind}.union(*(below[other] for other in sized.behind)))
    for place, (buffer, _) in enumerate(schedule.sized):
        first, last = lives.get(buffer, (0, -1))
        for other in range(place):
            begun, ended = lives.get(schedule.sized[other][0], (0, -1))
            together = first <= ended and begun <= last
            _require(
                not together or other in below[place],
                f"{buffer} and {schedule.sized[other][0]} are alive together and may share bytes",
            )


def _lives(schedule: Schedule) -> dict[Buffer, tuple[int, int]]:
    """The first and the last step that touch each buffer; what is copied to an input at the end
    lives until then."""
    found: dict[Buffer, tuple[int, int]] = {}
    for number, step in enumerate(schedule.steps):
        for buffer in writes(step) | reads(step):
            found[buffer] = (found.get(buffer, (number, number))[0], number)
    for _, view in schedule.mutations:
        if view.buffer in found:
            found[view.buffer] = (found[view.buffer][0], len(schedule.steps))
    return found


def _bytes_needed(buffer: Buffer) -> int | None:
    """From the first to the last element; None where sizes are symbols."""
    sizes, strides = [*map(constant_value, buffer.shape)], [*map(constant_value, buffer.stride)]
    if None in sizes or None in strides:
        return None
    if 0 in sizes:
        return 0
    steps = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True) if n and s)
    return (steps + 1) * buffer.dtype.itemsize


def _shared_by_calls(schedule: Schedule) -> set[Buffer]:
    """What a call's results may be views of, or a collective under way may read."""
    found: set[Buffer] = set()
    for step in schedule.steps:
        if isinstance(step, ExternStep):
            op = step.call.op
            if is_asynchronous(op) or any(r.alias_info is not None for r in op._schema.returns):
                found |= _buffers_of_call(step.call)
    return found
