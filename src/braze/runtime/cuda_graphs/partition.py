"""A schedule that cannot be recorded as a whole, in parts: those that can, and what lies between.

    k0 k1 c0 k2 | item | k3 k4 k5 | step+1         c: a call on the CPU that needs nothing computed
    ->                                             on the device
    c0  [k0 k1 k2]  item  [k3 k4 k5]  step+1       [...]: recorded, the others as compiled

Each part is a schedule of its own: what another part reads of it is a result of it, and an input of
that one. What is written in place, and the copies at the end, stay at the end.

Left whole: schedules whose inputs have symbolic sizes, those that change elements of what has
contents (scatters may write to inputs at any time), and those of which no part has enough steps for
a replay to pay. From the first number on that the
program computes for a size, all is one part that is not recorded.

A part is recorded where it has as many steps as one replay costs launches; with mode=None its time
on the host decides besides, as it does for a whole region (recording_choice.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias, final

import torch

from braze.frozen import frozen
from braze.ir.graphs.joint_graph import Role
from braze.ir.graphs.random_ops import draws
from braze.ir.kernels.kernel import KernelSources, Segment
from braze.ir.kernels.loops import Buffer, BufferView, given_symbols
from braze.ir.kernels.schedule import ExternStep, Schedule, Step, device_runs, scatters
from braze.runtime.cuda_graphs.policy import LEAST_STEPS
from braze.runtime.launch.result_storage import views_of
from braze.shapes.binding import NO_SIZES
from braze.shapes.expr import symbols

_LITTLE = "there is little to start"
# A step -> why it cannot be recorded, or "".
WhyNot: TypeAlias = Callable[[ExternStep], str]


@final
@frozen(eq=False)
class Part:
    """reads: where its inputs are among the region's inputs and, behind them, the results of the
    parts before, in order. why_not: why it is not recorded, or ""."""

    schedule: Schedule
    sources: KernelSources
    role: Role
    reads: tuple[int, ...]
    why_not: str


@final
@frozen(eq=False)
class Parts:
    """results: where the region's results are among its inputs and the parts' results."""

    parts: tuple[Part, ...]
    results: tuple[int, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it was cut, each reason once."""
        found = dict.fromkeys([part.why_not for part in self.parts])
        return tuple([reason for reason in found if reason not in ("", _LITTLE)])

    @property
    def recorded(self) -> int:
        """How many parts are."""
        return sum(not part.why_not for part in self.parts)


def recording_parts(
    schedule: Schedule,
    sources: KernelSources,
    role: Role,
    why_not: WhyNot,
    device: torch.device,
) -> Parts | None:
    """The parts, or None where the schedule is better left whole. device: of the kernels."""
    if schedule.sized or schedule.sizes.numbers:
        return None
    inputs = {*schedule.inputs}
    if any(_changes_contents(step, inputs) for step in schedule.steps):
        return None  # of another part, or of an input before the last one
    if any(map(_is_symbolic, schedule.inputs)):
        return None
    if any(_is_symbolic(v) and not _is_symbolic(v.buffer) for v in schedule.outputs):
        return None  # it may be made by a part that does not know the size yet
    targets = {target for target, _ in schedule.mutations}
    if any(v.buffer in targets and v.buffer is not t for t, v in schedule.mutations):
        return None  # contents that are exchanged are cloned first, by one program
    first = _first(schedule, device)
    order = [*first, *[n for n in range(len(schedule.steps)) if n not in {*first}]]
    runs = _joined(_runs(order, schedule, why_not))
    if all(why for why, _ in runs):
        return None
    settled = schedule.settled if schedule.in_place else len(schedule.steps)
    if any(n >= settled for _, numbers in runs[:-1] for n in numbers if n not in {*first}):
        return None  # what lies behind could fault when inputs have been written to
    return _Cutter(schedule, sources, role, device).cut(runs)


@final
class PartedGraph:
    """A `GraphCallable`: the parts, one after the other. Each value is the last part's alone that
    reads it. takes_inputs: a call empties the list of its inputs, and the parts take theirs."""

    __slots__ = ("_calls", "_drops", "_results", "_takes_inputs", "text")

    def __init__(
        self,
        parts: Parts,
        graphs: Sequence[Callable[..., list[torch.Tensor]]],
        takes_inputs: bool = False,
    ) -> None:
        """graphs: of the parts."""
        self.text = "\n".join([getattr(graph, "text", "") for graph in graphs])
        self._calls = [(graph, part.reads) for graph, part in zip(graphs, parts.parts, strict=True)]
        self._results, self._takes_inputs = parts.results, takes_inputs
        last = {place: n for n, part in enumerate(parts.parts) for place in part.reads}
        kept = {*parts.results}
        self._drops = [
            tuple([place for place, when in last.items() if when == n and place not in kept])
            for n in range(len(parts.parts))
        ]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The region's results."""
        values: list[torch.Tensor | None] = list(inputs)
        if self._takes_inputs:
            inputs.clear()  # type: ignore[attr-defined]
        for (graph, reads), drops in zip(self._calls, self._drops):
            given = [values[place] for place in reads]
            for place in drops:
                values[place] = None
            values += graph(given)
        return [values[place] for place in self._results]  # type: ignore[misc]


# --- private ---------------------------------------------------------------------------------

_Run: TypeAlias = tuple[str, list[int]]


def _changes_contents(step: Step, inputs: set[Buffer]) -> bool:
    """Whether a step writes to elements of what has contents. inputs: of the schedule, which calls
    update behind everything that can fault."""
    if isinstance(step, ExternStep):
        return step.in_place_op is not None and not inputs >= {*_outputs(step)}
    return bool(scatters(step))


def _is_symbolic(layout: Buffer | BufferView) -> bool:
    start = layout.offset if isinstance(layout, BufferView) else 0
    return any(symbols(size) for size in (*layout.shape, *layout.stride, start))


def _first(schedule: Schedule, device: torch.device) -> list[int]:
    """The steps that are elsewhere and need nothing of the device: they may come first. Those that
    draw random numbers stay in their order, up to the first that has to wait."""
    known = {*schedule.inputs, *(buffer for buffer, _ in schedule.constants)}
    known = {buffer for buffer in known if buffer.device.type != device.type}
    first = []
    drawn = False
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, ExternStep) or step.call.computes is not None:
            continue
        touched = {view.buffer for view in views_of(step)} | {*_outputs(step)}
        if all(buffer.device.type == device.type for buffer in touched):
            continue
        draws_numbers = draws(step.call.op, step.call.args, step.call.kwargs)
        if _may_come_first(step, known, device) and not (draws_numbers and drawn):
            known |= {*_outputs(step)}
            first.append(number)
        else:
            drawn |= draws_numbers
    return first


def _may_come_first(step: ExternStep, known: Collection[Buffer], device: torch.device) -> bool:
    """known: what lies elsewhere and is there already."""
    if not _outputs(step) or given_symbols(step.call):
        return False  # numbers that are computed on the way
    if any(buffer.device.type == device.type for buffer in _outputs(step)):
        return False
    return all(view.buffer in known for view in views_of(step))


def _runs(order: Sequence[int], schedule: Schedule, why_not: WhyNot) -> list[_Run]:
    """Steps that follow each other and are, or are not, recorded."""
    reasons: dict[int, str] = {}
    ends = ""
    for number in order:
        step = schedule.steps[number]
        if isinstance(step, ExternStep):
            why = why_not(step)
            if step.call.computes is not None:
                ends = ends or why or "sizes are computed"
        else:
            why = ""
        reasons[number] = ends or why
    grouped = groupby(order, key=lambda number: bool(reasons[number]))
    found = [list(numbers) for _, numbers in grouped]
    return [(next((reasons[n] for n in run if reasons[n]), ""), run) for run in found]


def _joined(runs: Sequence[_Run]) -> list[_Run]:
    """Runs that are too short for a replay go with what is not recorded beside them."""
    found: list[_Run] = []
    for why, numbers in runs:
        short = "" if why or len(numbers) >= LEAST_STEPS else _LITTLE
        why = why or short
        if found and why and found[-1][0]:
            before, together = found[-1]
            main = next((w for w in (before, why) if w != _LITTLE), why)
            found[-1] = (main, [*together, *numbers])
        else:
            found.append((why, numbers))
    return found


def _outputs(step: ExternStep) -> list[Buffer]:
    return [buffer for buffer in step.call.outputs if buffer is not None]


def _whole(buffer: Buffer) -> BufferView:
    return BufferView(buffer, buffer.shape, buffer.stride, 0, buffer.dtype)


@final
class _Cutter:
    """Makes the parts of runs."""

    def __init__(
        self, schedule: Schedule, sources: KernelSources, role: Role, device: torch.device
    ) -> None:
        self.schedule, self.sources, self.role, self.device = schedule, sources, role, device
        self.given = {buffer: n for n, buffer in enumerate(schedule.inputs)}
        self.constants = dict(schedule.constants)
        self.places: dict[Buffer, int] = dict(self.given)
        self.results: dict[int, int] = {}
        self.count = len(schedule.inputs)
        self.parts: list[Part] = []

    def cut(self, runs: Sequence[_Run]) -> Parts:
        """The parts, the last of which has what is elsewhere and computes nothing."""
        writes = self.schedule.mutations
        here = [w for w in writes if w[0].device.type == self.device.type]
        there = [w for w in writes if w[0].device.type != self.device.type]
        plain = [
            number
            for number, view in enumerate(self.schedule.outputs)
            if view.buffer in self.given or view.buffer in self.constants
        ]
        read = [self._touched(numbers) for _, numbers in runs]
        read.append({view.buffer for _, view in here} | {view.buffer for _, view in there})
        for place, (why, numbers) in enumerate(runs):
            later = set().union(*read[place + 1 :])
            self._add(why, numbers, later, here if place == len(runs) - 1 else (), ())
        if there or plain:
            self._add(_LITTLE, (), set(), there, plain)
        results = tuple([self.results[n] for n in range(len(self.schedule.outputs))])
        return Parts(tuple(self.parts), results)

    def _touched(self, numbers: Iterable[int]) -> set[Buffer]:
        return {buffer for n in numbers for buffer in self._buffers(n)}

    def _buffers(self, number: int) -> Iterator[Buffer]:
        """What a step reads and writes, each maybe several times."""
        step = self.schedule.steps[number]
        if isinstance(step, ExternStep):
            yield from (view.buffer for view in views_of(step))
            yield from _outputs(step)
            return
        yield from step.memory
        for launch in self.sources.launches[number]:
            yield from (argument for argument in launch.arguments if isinstance(argument, Buffer))

    def _add(
        self,
        why: str,
        numbers: Sequence[int],
        later: Collection[Buffer],
        writes: Sequence[tuple[Buffer, BufferView]],
        plain: Sequence[int],
    ) -> None:
        """A part of these steps. later: what the parts behind touch; plain: numbers of results that
        are views of inputs or constants."""
        schedule = self.schedule
        touched = dict.fromkeys(b for n in numbers for b in self._buffers(n))
        made = [b for b in touched if b not in self.places and b not in self.constants]
        needed = [*touched, *[b for w, view in writes for b in (w, view.buffer)]]
        needed += [schedule.outputs[n].buffer for n in plain]
        inputs = [b for b in dict.fromkeys(needed) if b in self.places]
        chosen = [n for n, view in enumerate(schedule.outputs) if view.buffer in {*made}]
        chosen = sorted([*chosen, *plain])
        between = [b for b in made if b in later]
        seen = sum(n < self.role.kept_from for n in chosen)
        outputs = (*[schedule.outputs[n] for n in chosen], *map(_whole, between))
        leaving = {view.buffer for view in outputs}
        slots = [(b, s) for b, s in schedule.slots if b in {*made} - leaving]
        steps = tuple([schedule.steps[n] for n in numbers])
        settled = list(numbers).index(schedule.settled) if schedule.settled in numbers else -1
        cut = replace(
            schedule,
            inputs=tuple(inputs),
            constants=tuple([(b, t) for b, t in schedule.constants if b in {*needed}]),
            steps=steps,
            slots=tuple(slots),
            arena_size=max((s.offset + s.size for _, s in slots), default=0),
            fresh=tuple([b for b in made if b in {*schedule.fresh, *leaving}]),
            last_use=self._last_uses(numbers, {*made, *inputs} - leaving - {*dict(slots)}),
            outputs=outputs,
            mutations=tuple(writes),
            in_place=tuple([b for b in schedule.in_place if settled >= 0]),
            settled=settled,
            refusals=(),
            sizes=schedule.sizes if _computes(steps) else NO_SIZES,
        )
        reads = tuple([self.places[b] for b in inputs])
        role = self._role(reads, seen if seen < len(outputs) else None)
        self.parts.append(Part(cut, self._sources(cut, numbers), role, reads, why))
        self.results |= {n: self.count + place for place, n in enumerate(chosen)}
        start = self.count + len(chosen)
        self.places |= {buffer: start + n for n, buffer in enumerate(between)}
        self.count += len(outputs)

    def _role(self, reads: Sequence[int], kept_from: int | None) -> Role:
        """Of a part that reads from these places. kept_from: of its results that not all are what
        the program sees."""
        role = Role() if kept_from is None else Role(kept_from=kept_from)
        if not self.role.takes_inputs:
            return role
        parameters = [n for n, place in enumerate(reads) if place in self.role.parameters]
        return replace(self.role, parameters=frozenset(parameters))

    def _last_uses(
        self, numbers: Sequence[int], temporary: Collection[Buffer]
    ) -> tuple[tuple[Buffer, int], ...]:
        found: dict[Buffer, int] = {}
        for place, number in enumerate(numbers):
            found |= dict.fromkeys(self._buffers(number), place)
        written = {b for target, view in self.schedule.mutations for b in (target, view.buffer)}
        gone = {*temporary} - written - {*self.schedule.in_place}
        return tuple([(buffer, place) for buffer, place in found.items() if buffer in gone])

    def _sources(self, cut: Schedule, numbers: Sequence[int]) -> KernelSources:
        """The launches of the part, its table and its segments: what follows each other in both."""
        launches = tuple([self.sources.launches[n] for n in numbers])
        planned = {buffer for buffer, _ in cut.slots}
        arguments = [a for step in launches for launch in step for a in launch.arguments]
        table = dict.fromkeys([a for a in arguments if isinstance(a, Buffer) and a not in planned])
        segments = [Segment(f"segment{n}", *run) for n, run in enumerate(device_runs(cut))]
        sizes = self.sources.sizes if _computes(cut.steps) else ()
        return KernelSources((), tuple(segments), tuple(table), sizes, launches)


def _computes(steps: Sequence[Step]) -> bool:
    return any(isinstance(step, ExternStep) and step.call.computes for step in steps)
