"""Launches of one function that do not need each other, as one launch.

    k[n0](p, m)                      g[n0 + n1](p, m, q, r, n0), where g is
    k[n1](q, r)            ->            pid = tl.program_id(0)
                                         if pid < e0:
                                             p0 = a0_p0 ...
                                         else:
                                             p0 = a1_p0 ...
                                             pid = pid - e0
                                         ...                    as in k

An optimizer has a kernel for each parameter, most of which take less time than it takes to start
them, also where they are replayed. A launch comes earlier than it was, to the first of its kind in
its run between library calls, if nothing on the way has to do with its memory. Large kernels stay
as they are, those that multiply matrices (each was timed by itself), and those that assert
something.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.loops import Buffer, bytes_of
from braze.ir.kernels.schedule import Kernel, Schedule, Store, device_runs
from braze.shapes.expr import constant_value

_LEAST_TOGETHER = 3  # launches
_MOST_BYTES = 8 << 20  # that a kernel goes through: more of it takes longer than a start
_MOST_ARGUMENTS = 256  # of a launch: its function is built in two seconds
_PROGRAM = "tl.program_id(0)"


def launch_together(
    schedule: Schedule, launches: Sequence[tuple[Launch, ...]]
) -> list[tuple[Launch, ...]]:
    """The launches of each step, of fewer: a step that is started with an earlier one has none."""
    made = list(launches)
    slots = {buffer: (slot.offset, slot.offset + slot.size) for buffer, slot in schedule.slots}
    for first, last in device_runs(schedule):
        steps = {
            n: step for n in range(first, last + 1) if isinstance(step := schedule.steps[n], Kernel)
        }
        for members in _groups(steps, launches, slots):
            made[members[0]] = (_together([launches[number][0] for number in members]),)
            for number in members[1:]:
                made[number] = ()
    return made


# --- private ---------------------------------------------------------------------------------

# Where a buffer lies: its own memory, or bytes of the arena.
_Place = Buffer | tuple[int, int]


def _groups(
    steps: Mapping[int, Kernel],
    launches: Sequence[tuple[Launch, ...]],
    slots: Mapping[Buffer, tuple[int, int]],
) -> list[list[int]]:
    """Which of these steps become one launch each. A step of a group that is too small stays where
    it is, which the others have to heed: so they are found anew without it."""
    several = [n for n, step in steps.items() if len(launches[n]) == 1 and step.product is None]
    joining = {n for n in several if _may_join(launches[n][0])}
    while True:
        groups = _Groups(slots)
        for number, kernel in steps.items():
            groups.add(number, kernel, launches[number][0] if number in joining else None)
        found = [group for several in groups.open.values() for group in several]
        small = {n for group in found if len(group) < _LEAST_TOGETHER for n in group}
        if not small:
            return found
        joining -= small


@dataclass(slots=True)
class _Groups:
    """The launches of one run of kernels. open: by function, steps that become one launch; slots:
    of buffers in the arena. wrote, touched: the step that did last, by buffer; arena: of each that
    touched bytes of the arena, which, and whether it wrote there."""

    slots: Mapping[Buffer, tuple[int, int]]
    open: dict[DeviceFunction, list[list[int]]] = field(default_factory=dict)
    wrote: dict[Buffer, int] = field(default_factory=dict)
    touched: dict[Buffer, int] = field(default_factory=dict)
    arena: list[tuple[int, int, int, bool]] = field(default_factory=list)

    def add(self, number: int, kernel: Kernel, launch: Launch | None) -> None:
        """The next step; without its launch it stays where it is."""
        writes = _written(kernel)
        place = number
        if launch is not None:
            earliest = self._earliest(kernel, writes)
            groups = self.open.setdefault(launch.function, [])
            most = _MOST_ARGUMENTS // (len(launch.arguments) + 1)
            group = next((g for g in groups if g[0] >= earliest and len(g) < most), None)
            if group is None:
                groups.append([number])
            else:
                group.append(number)
                place = group[0]
        self._note(place, kernel, writes)

    def _earliest(self, kernel: Kernel, writes: set[Buffer]) -> int:
        """The first step in whose place the kernel may run, beside what runs there."""
        last = -1
        for buffer in kernel.memory:
            seen = self.touched if buffer in writes else self.wrote
            last = max(last, seen.get(buffer, -1))
            if buffer in self.slots:
                start, stop = self.slots[buffer]
                for begin, end, number, wrote in self.arena:
                    if begin < stop and start < end and (wrote or buffer in writes):
                        last = max(last, number)
        return last + 1

    def _note(self, place: int, kernel: Kernel, writes: set[Buffer]) -> None:
        for buffer in kernel.memory:
            self.touched[buffer] = max(place, self.touched.get(buffer, -1))
            if buffer in writes:
                self.wrote[buffer] = max(place, self.wrote.get(buffer, -1))
            if buffer in self.slots:
                self.arena.append((*self.slots[buffer], place, buffer in writes))


def _written(kernel: Kernel) -> set[Buffer]:
    stores = [s for phase in kernel.phases for s in (*phase.body, *phase.row)]
    found = {s.target for s in stores if isinstance(s, Store)}
    if kernel.spread is not None:
        found |= {kernel.spread.partials, kernel.spread.arrivals}
    return found | {column.target for column in kernel.columns}


def _may_join(launch: Launch) -> bool:
    sizes = [size for a in launch.arguments if isinstance(a, Buffer) for size in a.shape]
    numbers = [a for a in launch.arguments if not isinstance(a, Buffer)]
    if any(constant_value(n) is None for n in (*sizes, *numbers, *launch.grid)):
        return False
    if launch.function.checked or 2 * len(launch.arguments) > _MOST_ARGUMENTS:
        return False
    return sum(bytes_of(a) for a in launch.arguments if isinstance(a, Buffer)) <= _MOST_BYTES


def _together(launches: Sequence[Launch]) -> Launch:
    """One launch that does what all do. Each has a grid of one axis."""
    counts = [constant_value(launch.grid[0]) or 0 for launch in launches]
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    function = _function(launches[0].function, len(launches))
    arguments = [a for launch in launches for a in launch.arguments]
    return Launch(function, (ends[-1], 1, 1), (*arguments, *ends[:-1]))


def _function(function: DeviceFunction, count: int) -> DeviceFunction:
    """The function for so many sets of arguments; behind them, where the programs of each end."""
    start = function.text.index(f"def {function.name}(")
    end = function.text.index("):\n", start)
    names = function.text[start + len(f"def {function.name}(") : end].split(", ")
    given = len(function.signature) - len(function.constants)
    own, blocks = names[:given], names[given:]
    sets = [[f"a{number}_{name}" for name in own] for number in range(count)]
    ends = [f"e{number}" for number in range(count - 1)]
    head = ", ".join([*(name for names in sets for name in names), *ends, *blocks])
    choice = [f"program = {_PROGRAM}", *_choice(own, sets, 0, count)]
    lines = "".join(f"    {line}\n" for line in choice)
    body = function.text[end + 3 :].replace(_PROGRAM, "program")
    text = f"{function.text[:start]}def NAME({head}):\n{lines}{body}"
    kinds = function.signature
    signature = (*kinds[:given] * count, *["i32"] * len(ends), *kinds[given:])
    aligned = [n for n in function.aligned if n < given]
    key = (text, signature, function.constants, function.warps)
    name = f"k_{hashlib.sha256(repr(key).encode()).hexdigest()[:12]}"
    return replace(
        function,
        name=name,
        text=text.replace("NAME", name),
        signature=signature,
        aligned=tuple([n + given * number for number in range(count) for n in aligned]),
    )


def _choice(
    own: Sequence[str], sets: Sequence[Sequence[str]], first: int, last: int
) -> Iterable[str]:
    """Lines that give the program the arguments of its launch, of those from first to last."""
    if last - first == 1:
        yield from (f"{name} = {given}" for name, given in zip(own, sets[first], strict=True))
        if first:
            yield f"program = program - e{first - 1}"
        return
    middle = (first + last) // 2
    yield f"if program < e{middle - 1}:"
    yield from (f"    {line}" for line in _choice(own, sets, first, middle))
    yield "else:"
    yield from (f"    {line}" for line in _choice(own, sets, middle, last))
