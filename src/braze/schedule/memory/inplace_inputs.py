"""Lets kernels write results directly into the inputs that the program updates.

    kernel k0: b9[i0] = p[i0] - 0.1 * g[i0]                 kernel k0: p[i0] = p[i0] - 0.1 * g[i0]
    mutate p = b9                                  ->

Without it, an optimizer's step would hold every parameter and every moment twice, and copy them.
A program that faults is run again by eager kernels, so nothing may be written before the last
step that can fault: kernels that write in place come last. Refused: values that are results, too,
that an extern call needs, or whose kernel reads the input at other places than it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import final

from braze.frozen import frozen
from braze.ir.kernels.loops import Apply, Buffer, BufferView, InRange, Load, LoopProgram, Scalar
from braze.ir.kernels.scalars import loads, rebuild, replace_children, walk
from braze.ir.kernels.schedule import (
    Accumulate,
    ExternStep,
    Kernel,
    Product,
    Step,
    Store,
    scalar_of,
    scatters,
)
from braze.schedule.analysis.uses import extern_reads
from braze.schedule.memory.allocate import written
from braze.schedule.memory.inplace_calls import CallUpdate, find_updates
from braze.shapes.expr import Symbol, symbols


@final
@frozen
class Rewritten:
    """steps: in their new order; those from `settled` on write in place; no kernel there faults.
    mutations: what is left to be copied. in_place: the inputs that these steps write to.
    alike: as `Schedule.alike`."""

    steps: tuple[Step, ...]
    settled: int
    mutations: tuple[tuple[Buffer, BufferView], ...]
    in_place: tuple[Buffer, ...]
    alike: tuple[tuple[Kernel, Kernel], ...] = ()


def write_in_place(program: LoopProgram, steps: Sequence[Step]) -> Rewritten:
    """The steps with as many write-backs done by the kernels that compute the values as can be."""
    updates = find_updates(program, steps)
    chosen = _candidates(program, steps)
    followers = _followers(steps, updates)
    updates = {number: update for number, update in updates.items() if number in followers}
    chosen = {target: (value, k) for target, (value, k) in chosen.items() if k in followers}
    late: set[int] = {*updates}
    for _, maker in chosen.values():
        late |= followers[maker] or set()
    touched = [_read(step) for step in steps]
    for target, (_, maker) in list(chosen.items()):
        if any(target in touched[number] for number in late if number > maker):
            del chosen[target]
    if not chosen and not updates:
        return Rewritten(tuple(steps), len(steps), program.mutations, ())
    places = {value: target for target, (value, _) in chosen.items()}
    first = [step for number, step in enumerate(steps) if number not in late]
    last = [_placed_step(steps[n], updates.get(n), places) for n in sorted(late)]
    written_to = [*chosen, *[t for update in updates.values() for t in update.targets.values()]]
    rest = tuple([(t, view) for t, view in program.mutations if t not in {*written_to}])
    return Rewritten((*first, *last), len(first), rest, tuple(written_to))


def may_take(kernel: Kernel, value: Buffer, target: Buffer, earlier_phases: bool = False) -> bool:
    """Whether the kernel may write to `target` instead of `value`: it does so once, and reads the
    target in the same place before.

    earlier_phases: so may earlier phases of a task, at all points of its rows: what they read there
    only this task writes.
    """
    if value in kernel.scratch or target in written(kernel):
        return False
    stores = [
        (number, statement)
        for number, part in enumerate(_parts(kernel))
        for statement in part
        if isinstance(statement, Store) and statement.target is value
    ]
    if len(stores) != 1:
        return False
    ((home, store),) = stores
    if earlier_phases and not {symbol for symbol, _ in kernel.rows} <= _symbols_of(store):
        return False
    for number, part in enumerate(_parts(kernel)):
        before = number == home or (earlier_phases and number < home)
        for statement in part:
            for load in loads(scalar_of(statement)):
                if load.buffer is target and not (before and load.coordinates == store.coordinates):
                    return False
            before = before and statement is not store
    return True


def placed(step: Step, places: dict[Buffer, Buffer]) -> Kernel:
    """The kernel with buffers in place of others."""
    assert isinstance(step, Kernel)
    if not places.keys() & {*step.memory}:
        return step

    def moved(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(node, Load) and node.buffer in places:
            return replace(node, buffer=places[node.buffer])
        return replace_children(node, below)

    def stored(store: Store) -> Store:
        target = places.get(store.target, store.target)
        return replace(store, target=target, value=rebuild(store.value, moved))

    def rewritten(statement: Store | Accumulate) -> Store | Accumulate:
        if isinstance(statement, Store):
            return stored(statement)
        return replace(statement, body=rebuild(statement.body, moved))

    def viewed(view: BufferView) -> BufferView:
        return replace(view, buffer=places.get(view.buffer, view.buffer))

    def multiplied(product: Product) -> Product:
        first, second = product.computed
        return replace(
            product,
            first=viewed(product.first),
            second=viewed(product.second),
            computed=(
                first and replace(first, value=rebuild(first.value, moved)),
                second and replace(second, value=rebuild(second.value, moved)),
            ),
        )

    phases = tuple(
        [
            replace(p, body=tuple(map(rewritten, p.body)), row=tuple(map(stored, p.row)))
            for p in step.phases
        ]
    )
    return replace(
        step,
        phases=phases,
        columns=tuple([replace(c, body=rebuild(c.body, moved)) for c in step.columns]),
        product=step.product and multiplied(step.product),
        memory=_unique(places.get(b, b) for b in step.memory),
    )


# --- private ---------------------------------------------------------------------------------


def _candidates(program: LoopProgram, steps: Sequence[Step]) -> dict[Buffer, tuple[Buffer, int]]:
    """Written inputs -> the buffer with their new contents, and the number of its kernel."""
    makers: dict[Buffer, list[int]] = {}
    for number, step in enumerate(steps):
        for buffer in written(step):
            makers.setdefault(buffer, []).append(number)
    wanted = [view.buffer for _, view in program.mutations]
    outside = {view.buffer for view in program.outputs}
    found = {}
    for target, view in program.mutations:
        value, numbers = view.buffer, makers.get(view.buffer, [])
        if len(numbers) != 1 or value in outside or wanted.count(value) > 1 or target in wanted:
            continue
        step = steps[numbers[0]]
        if isinstance(step, Kernel) and _is_like(view, target) and may_take(step, value, target):
            found[target] = (value, numbers[0])
    return found


def _is_like(view: BufferView, target: Buffer) -> bool:
    """Whether a view is a whole buffer of the target's layout."""
    buffer = view.buffer
    whole = (view.shape, view.stride, view.dtype) == (buffer.shape, buffer.stride, buffer.dtype)
    same = (buffer.shape, buffer.stride, buffer.dtype) == (
        target.shape,
        target.stride,
        target.dtype,
    )
    return whole and same and view.offset == 0 and buffer.device == target.device


def _placed_step(step: Step, update: CallUpdate | None, places: dict[Buffer, Buffer]) -> Step:
    if update is None:
        return placed(step, places)
    assert isinstance(step, ExternStep)
    return update.made(step, places)


def _symbols_of(store: Store) -> set[Symbol]:
    return {symbol for coordinate in store.coordinates for symbol in symbols(coordinate)}


def _parts(kernel: Kernel) -> list[tuple[Store | Accumulate, ...]]:
    """What the kernel does for each element of a phase, and for each row, in order."""
    return [part for phase in kernel.phases for part in (phase.body, phase.row)]


def _followers(
    steps: Sequence[Step], updates: Mapping[int, CallUpdate]
) -> dict[int, set[int] | None]:
    """Of each kernel that cannot fault, and of each of these updates, itself and the steps that
    need its results, directly or not; absent where one of those is neither, or touches what is
    scattered into, which may have had other contents before."""
    found: dict[int, set[int] | None] = {}
    readers: dict[Buffer, set[int]] = {}
    moving = {s.target for step in steps if isinstance(step, Kernel) for s in scatters(step)}
    calls = [s for s in steps if isinstance(s, ExternStep) and s.in_place_op is not None]
    moving |= {buffer for step in calls for buffer in written(step)}
    for number in reversed(range(len(steps))):
        step = steps[number]
        sure = (_is_sure(step) or number in updates) and moving.isdisjoint(
            [*written(step), *_read(step)]
        )
        after: set[int] | None = {number} if sure else None
        for buffer in written(step):
            for reader in readers.get(buffer, ()):
                if reader == number or after is None:
                    continue
                further = found.get(reader)
                after = None if further is None else after | further
        if after is not None:
            found[number] = after
        for buffer in _read(step):
            readers.setdefault(buffer, set()).add(number)
    return found


def _read(step: Step) -> set[Buffer]:
    if isinstance(step, ExternStep):
        return set(extern_reads(step.call))
    statements = [s for part in _parts(step) for s in part]
    return {load.buffer for s in statements for load in loads(scalar_of(s))}


def _is_sure(step: Step) -> bool:
    """Whether a step is a kernel that cannot fault."""
    if not isinstance(step, Kernel):
        return False
    statements = [s for part in _parts(step) for s in part]
    return not any(_may_fault(node) for s in statements for node in walk(scalar_of(s)))


def _may_fault(node: Scalar) -> bool:
    if isinstance(node, InRange):
        return True
    divides = isinstance(node, Apply) and ("div" in node.op or "mod" in node.op)
    return divides and not node.dtype.is_floating_point


def _unique(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    return tuple(dict.fromkeys(buffers))
