"""C++ translation units of a schedule: each different kernel once, and the entries that run them.

static const u16 p0_0[] = {0, 2};
static const bz_step s0[] = {
    {k_3fa0..., p0_0, 0, 2, 0},
};
BZ_ENTRY segment0;
const bz_entry segment0 = {bz_run_entry, s0, 1, 0};

The entries are data, which `bz_run_entry` reads.

Readers, and the compiler, see `fused_add_gelu_3` in the place of `k_3fa0...`, behind the lines of
the program that it computes: `SourceUnit.readable`.
"""

from __future__ import annotations

import hashlib
import importlib.resources
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from braze.codegen.cpp.nest import kernel_text
from braze.codegen.cpp.operators import SPECIAL_CALLS
from braze.codegen.cpp.prelude import prelude_for
from braze.codegen.cpp.product import product_text
from braze.codegen.cpp.sizes import Form, declared, form_of
from braze.codegen.segments import size_symbols
from braze.ir.kernels.kernel import KernelLabel, KernelSources, Segment, SourceUnit
from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.schedule import Kernel, Schedule, kernel_runs, origins_of, scatters
from braze.options import Options
from braze.shapes.expr import Symbol

_KERNELS_A_UNIT = 16  # about; above, units are built side by side, two compilers at a time


def generate(schedule: Schedule, options: Options) -> KernelSources:
    """Source of every kernel of the schedule. Several units where there are many kernels and
    several compilers may run at once."""
    kernels = [step for step in schedule.steps if isinstance(step, Kernel)]
    table = _table(schedule, kernels)
    sizes = size_symbols(schedule)
    sources = _Sources(
        {b: i for i, b in enumerate(table)}, {s: f"n{i}" for i, s in enumerate(sizes)}
    )
    segments: list[Segment] = []
    alike = dict(schedule.alike)
    for kernel in kernels:
        sources.add_kernel(kernel, alike.get(kernel))
    for first, last in kernel_runs(schedule):
        entry = f"segment{len(segments)}"
        segments.append(Segment(entry, first, last))
        steps = schedule.steps[first : last + 1]
        sources.add_segment(entry, [step for step in steps if isinstance(step, Kernel)])
    units = sources.units(1 if options.build_threads == 1 else _KERNELS_A_UNIT)
    return KernelSources(units, tuple(segments), table, sizes)


# --- private ---------------------------------------------------------------------------------


def _table(schedule: Schedule, kernels: Iterable[Kernel]) -> tuple[Buffer, ...]:
    """The buffers that kernels touch; those that change from call to call come first."""
    used = {buffer: None for kernel in kernels for buffer in kernel.memory}
    planned = {buffer for buffer, _ in (*schedule.slots, *schedule.sized)}
    planned |= {buffer for buffer, _ in schedule.constants}
    changing = [b for b in schedule.inputs if b in used]
    changing += [b for b in used if b not in planned and b not in set(changing)]
    return (*changing, *(b for b in used if b in planned))


@dataclass(slots=True)
class _Sources:
    """The text and form of each kernel; names of the functions, by their text; entries."""

    places: dict[Buffer, int]
    sizes: dict[Symbol, str]
    texts: dict[Kernel, tuple[str, Form]] = field(default_factory=dict)
    users: dict[str, set[str]] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)
    launches: dict[str, list[Kernel]] = field(default_factory=dict)
    entries: list[str] = field(default_factory=list)

    def add_kernel(self, kernel: Kernel, like: Kernel | None) -> None:
        """Note the kernel's text, and that its form has another user. like: a kernel with the same
        text."""
        if like in self.texts:
            self.texts[kernel] = self.texts[like]
            return
        text = kernel_text(kernel, self.sizes)
        form = form_of(kernel, text)
        self.texts[kernel] = text, form
        self.users.setdefault(form.text, set()).add(text)

    def add_segment(self, entry: str, kernels: Sequence[Kernel]) -> None:
        """An entry that runs the kernels in order."""
        at = len(self.entries)
        data, steps = [], []
        for number, kernel in enumerate(kernels):
            places = [self.places[buffer] for buffer in kernel.memory]
            name, numbers = self._function(kernel)
            data.append(f"static const u16 p{at}_{number}[] = {{{_listed(places)}}};")
            held = f"c{at}_{number}" if numbers else "0"
            if numbers:
                data.append(f"static const i64 {held}[] = {{{_listed(numbers)}}};")
            # Those that scatter: into an input, maybe, where the kernels before checked.
            checks = int(bool(scatters(kernel)))
            steps.append(f"    {{{name}, p{at}_{number}, {held}, {len(places)}, {checks}}},")
        listed = [f"static const bz_step s{at}[] = {{", *steps, "};", f"BZ_ENTRY {entry};"]
        begins = f"const bz_entry {entry} = {{bz_run_entry, s{at}, {len(kernels)}, {at}}};"
        self.entries.append("\n".join([*data, *listed, begins]))

    def units(self, kernels_a_unit: int) -> tuple[SourceUnit, ...]:
        """The units, one where few kernels are needed."""
        texts = [text.replace("NAME", name) for text, name in self.kernels.items()]
        count = -(-len(texts) // kernels_a_unit)
        if count == 1 or kernels_a_unit == 1:
            shared = [f"// --- kernels ---\n{text}" for text in texts]
            entries = [_resource("entries.cpp"), *self.entries] if texts else []
            return (SourceUnit("kernels", _unit([*shared, *entries]), self._labels()),)
        count += count % 2
        units, labels = [], self._labels()
        for number in range(count):
            part = [_exported(text) for text in texts[number::count]]
            here = labels[number::count]
            units.append(SourceUnit(f"kernels{number}", _unit(part), here, has_local_names=False))
        declared_here = [
            f"void {name}(char* const*, const i64*, const i64*, int, int*);"
            for name in self.kernels.values()
        ]
        head = _resource("entries.cpp")
        text = "\n".join([head, *declared_here, *self.entries, ""])
        return (*units, SourceUnit("entries", text))

    def _function(self, kernel: Kernel) -> tuple[str, tuple[int, ...]]:
        """The name of the kernel's function, and the numbers that it is called with: none where
        no other kernel has the form."""
        text, form = self.texts[kernel]
        numbers = form.numbers if len(self.users[form.text]) > 1 else ()
        if numbers:
            text = form.text.replace("{\n", "{\n" + declared(numbers), 1)
            head, tail = text.split("static void NAME(", 1)
            text = head + "static void NAME(" + tail.replace("{\n", "{\n" + declared(numbers), 1)
        name = self.kernels.get(text)
        if name is None:
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            name = self.kernels[text] = f"k_{digest}"
        self.launches.setdefault(name, []).append(kernel)
        return name, numbers

    def _labels(self) -> tuple[KernelLabel, ...]:
        """How each function is to be shown, in their order: named as the first kernel that it
        serves."""
        return tuple(
            KernelLabel(name, served[0].name, tuple([(k.name, origins_of(k)) for k in served]))
            for name, served in ((name, self.launches[name]) for name in self.kernels.values())
        )


def _resource(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text()


def _listed(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))


def _unit(texts: list[str]) -> str:
    body = "\n".join([*texts, ""])
    called = []
    if SPECIAL_CALLS.search(body):
        called.append(_resource("special.cpp"))
    if "bz_product<" in body:
        called.append(product_text())
    if "bz_soften<" in body:
        called.append(_resource("attention.cpp"))
    text = "\n".join([*called, body])
    return f"{prelude_for(text)}\n{text}"


def _exported(text: str) -> str:
    """The kernel's entry function visible to other units; its name is a hash of its text."""
    head, tail = text.rsplit("static void k_", 1)
    return f"{head}void k_{tail}"
