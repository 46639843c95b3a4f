"""C++ translation units of a schedule: each different kernel once, and the entries that run them.

extern "C" int segment0(char** table, const i64* sizes, int threads) {
    int fault = 0;
    { char* const p[] = {table[0], table[2]}; k_3fa0...(p, sizes, threads, &fault); }
    return fault;
}
"""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from braze.codegen.cpp.nest import kernel_text
from braze.codegen.cpp.operators import SPECIAL_CALLS
from braze.ir.kernel import KernelSources, Segment, SourceUnit
from braze.ir.loops import Buffer
from braze.ir.schedule import Kernel, Schedule
from braze.options import Options
from braze.shapes.expr import Symbol, symbols

_KERNELS_A_UNIT = 24  # above, units are built side by side
_VISIBLE = '__attribute__((visibility("default")))'


def generate(schedule: Schedule, options: Options) -> KernelSources:
    """Source of every kernel of the schedule. Several units where there are many kernels and
    several compilers may run at once."""
    kernels = [step for step in schedule.steps if isinstance(step, Kernel)]
    table = _table(schedule, kernels)
    sizes = _size_symbols(schedule)
    sources = _Sources(
        {b: i for i, b in enumerate(table)}, {s: f"n{i}" for i, s in enumerate(sizes)}
    )
    segments = []
    for first, last in _runs(schedule):
        entry = f"segment{len(segments)}"
        segments.append(Segment(entry, first, last))
        sources.add_segment(entry, schedule.steps[first : last + 1])  # type: ignore[arg-type]
    units = sources.units(1 if options.build_threads == 1 else _KERNELS_A_UNIT)
    return KernelSources(units, tuple(segments), table, sizes)


def prelude() -> str:
    """What every unit begins with."""
    return importlib.resources.files(__package__).joinpath("prelude.cpp").read_text()


def special() -> str:
    """What a unit that calls special functions goes on with."""
    return importlib.resources.files(__package__).joinpath("special.cpp").read_text()


# --- private ---------------------------------------------------------------------------------


def _table(schedule: Schedule, kernels: Iterable[Kernel]) -> tuple[Buffer, ...]:
    """The buffers that kernels touch; those that change from call to call come first."""
    used = {buffer: None for kernel in kernels for buffer in kernel.memory}
    planned = {buffer for buffer, _ in schedule.slots}
    planned |= {buffer for buffer, _ in schedule.constants}
    changing = [b for b in schedule.inputs if b in used]
    changing += [b for b in used if b not in planned and b not in set(changing)]
    return (*changing, *(b for b in used if b in planned))


def _size_symbols(schedule: Schedule) -> tuple[Symbol, ...]:
    """The symbols in sizes, offsets and index values of all kernels, in a stable order."""
    found: set[Symbol] = set()
    for buffer in schedule.inputs:
        for size in (*buffer.shape, *buffer.stride):
            found |= symbols(size)
    return tuple(sorted(found, key=lambda symbol: symbol.name))


def _runs(schedule: Schedule) -> list[tuple[int, int]]:
    """Runs of kernels between extern calls, as (first, last) steps."""
    found: list[tuple[int, int]] = []
    for number, step in enumerate(schedule.steps):
        if not isinstance(step, Kernel):
            continue
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


@dataclass(slots=True)
class _Sources:
    """Kernels by their text, and the text of entries."""

    places: dict[Buffer, int]
    sizes: dict[Symbol, str]
    kernels: dict[str, str] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)

    def add_segment(self, entry: str, kernels: Sequence[Kernel]) -> None:
        """An entry that runs the kernels in order."""
        lines = [
            f'extern "C" {_VISIBLE} int {entry}(char** table, const i64* sizes, int threads) {{'
        ]
        lines.append("    int fault = 0;")
        for kernel in kernels:
            pointers = ", ".join(f"table[{self.places[b]}]" for b in kernel.memory)
            call = f"{self._kernel(kernel)}(p, sizes, threads, &fault);"
            lines.append(f"    {{ char* const p[] = {{{pointers}}}; {call} }}")
        self.entries.append("\n".join([*lines, "    return fault;", "}"]))

    def units(self, kernels_a_unit: int) -> tuple[SourceUnit, ...]:
        """The units, one where few kernels are needed."""
        texts = [text.replace("NAME", name) for text, name in self.kernels.items()]
        shared = [f"// --- kernels ---\n{text}" for text in texts]
        if len(texts) <= kernels_a_unit or kernels_a_unit == 1:
            return (SourceUnit("kernels", _unit([*shared, *self.entries])),)
        units = []
        for start in range(0, len(texts), kernels_a_unit):
            part = [_exported(text) for text in texts[start : start + kernels_a_unit]]
            units.append(SourceUnit(f"kernels{len(units)}", _unit(part)))
        declared = [
            f"void {name}(char* const*, const i64*, int, int*);" for name in self.kernels.values()
        ]
        entries = "\n".join(["typedef long i64;", *declared, *self.entries, ""])
        return (*units, SourceUnit("entries", entries))

    def _kernel(self, kernel: Kernel) -> str:
        text = kernel_text(kernel, self.sizes)
        name = self.kernels.get(text)
        if name is None:
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            name = self.kernels[text] = f"k_{digest}"
        return name


def _unit(texts: list[str]) -> str:
    body = "\n".join([*texts, ""])
    head = [prelude(), special()] if SPECIAL_CALLS.search(body) else [prelude()]
    return "\n".join([*head, body])


def _exported(text: str) -> str:
    """The kernel's entry function visible to other units; its name is a hash of its text."""
    head, tail = text.rsplit("static void k_", 1)
    return f"{head}void k_{tail}"
