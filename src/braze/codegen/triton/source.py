"""The device functions of a schedule, each different one once, and their launches.

A function's text is complete by itself. Two kernels share one where texts, types, block sizes and
alignment agree: the blocks of a network do. Every pointer is taken to be aligned to 16 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from braze.codegen.segments import host_sources, size_symbols
from braze.codegen.triton.candidates import candidate_tilings, first_tiling
from braze.codegen.triton.function import function_body, programs
from braze.codegen.triton.functions import functions_in
from braze.codegen.triton.operators import POINTERS
from braze.codegen.triton.shared import share_functions
from braze.codegen.triton.tiling import Tiling
from braze.codegen.triton.together import launch_together
from braze.ir.device_model import DeviceModel
from braze.ir.kernels.kernel import DeviceFunction, KernelLabel, KernelSources, Launch
from braze.ir.kernels.loops import Buffer, ExternCall
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule, Step, origins_of
from braze.options import Options
from braze.shapes.expr import Symbol, bounds

_HEAD = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice"


def generate(schedule: Schedule, options: Options) -> KernelSources:
    """The functions of every kernel of the schedule, and what starts them."""
    return host_sources(schedule, launches(schedule, {}, options.numerics))


def launches(
    schedule: Schedule, tilings: Mapping[Kernel, Tiling], numerics: str = "default"
) -> list[tuple[Launch, ...]]:
    """The launches of each step, by the tilings given and the cost model's where none is."""
    names = {symbol: f"n{i}" for i, symbol in enumerate(size_symbols(schedule))}
    sources = _TritonSources(names, numerics)
    each = [
        (sources.launch(step, tilings.get(step) or first_tiling(step, schedule.device)),)
        if isinstance(step, Kernel)
        else ()
        for step in schedule.steps
    ]
    return launch_together(schedule, share_functions(each))


def alternatives(schedule: Schedule, options: Options) -> list[tuple[Launch, ...]]:
    """The ways to launch each step, of which one is to be chosen; the cost model's comes first.
    () for calls of ATen."""
    names = {symbol: f"n{i}" for i, symbol in enumerate(size_symbols(schedule))}
    sources = _TritonSources(names, options.numerics)
    return [
        tuple([sources.launch(step, tiling) for tiling in candidate_tilings(step, schedule.device)])
        if isinstance(step, Kernel)
        else ()
        for step in schedule.steps
    ]


def kernel_alternatives(
    kernel: Kernel, options: Options, device: DeviceModel
) -> tuple[Launch, ...]:
    """The ways to launch a kernel of known sizes by itself."""
    sources = _TritonSources({}, options.numerics)
    return tuple([sources.launch(kernel, tiling) for tiling in candidate_tilings(kernel, device)])


def ways_to_run(
    steps: Sequence[Step], options: Options, device: DeviceModel
) -> list[ExternCall | tuple[Launch, ...]]:
    """Of steps of known sizes, the calls, and the ways to launch each kernel: of one that
    multiplies all that may pay, of others the first."""
    sources = _TritonSources({}, options.numerics)
    found: list[ExternCall | tuple[Launch, ...]] = []
    for step in steps:
        if isinstance(step, ExternStep):
            found.append(step.call)
        elif step.product is None:
            found.append((sources.launch(step, first_tiling(step, device)),))
        else:
            found.append(kernel_alternatives(step, options, device))
    return found


# --- private ---------------------------------------------------------------------------------


def _numbers(kernel: Kernel) -> frozenset[Buffer]:
    """Buffers of one element on the CPU beside others on a device: they come as their values."""
    devices = {buffer.device.type for buffer in kernel.memory}
    if len(devices) == 1:
        return frozenset()
    return frozenset(b for b in kernel.memory if b.device.type == "cpu")


@dataclass(slots=True)
class _TritonSources:
    """Names of size symbols; the functions made so far by what makes them different."""

    sizes: dict[Symbol, str]
    numerics: str
    functions: dict[object, DeviceFunction] = field(default_factory=dict)

    def launch(self, kernel: Kernel, tiling: Tiling) -> Launch:
        """The launch that runs the kernel."""
        numbers = _numbers(kernel)
        body = function_body(kernel, tiling, self.sizes, numbers, self.numerics)
        lines = "\n".join(f"    {line}" for line in body.lines)
        used = [(s, name) for s, name in self.sizes.items() if _is_named(name, lines)]
        arguments = [f"p{n}" for n in range(len(kernel.memory))] + [name for _, name in used]
        blocks = [f"{d.name.upper()}B: tl.constexpr" for d in tiling.axes]
        head = f"@triton.jit\ndef NAME({', '.join([*arguments, *blocks])}):"
        called = functions_in(lines)
        text = "\n\n\n".join([_HEAD, *called, f"{head}\n{lines}\n"])
        signature = [
            POINTERS[buffer.dtype].removeprefix("*" if buffer in numbers else "")
            for buffer in kernel.memory
        ]
        signature += [_size_type(symbol, tiling) for symbol, _ in used]
        signature += ["constexpr"] * len(blocks)
        function = self._function(kernel, tiling, text, tuple(signature), body.checked)
        grid = (programs(tiling), 1, 1)
        return Launch(function, grid, (*kernel.memory, *(symbol + 0 for symbol, _ in used)))

    def _function(
        self, kernel: Kernel, tiling: Tiling, text: str, signature: tuple[str, ...], checked: bool
    ) -> DeviceFunction:
        constants = tuple(d.block for d in tiling.axes)
        key = (text, signature, constants, tiling.warps)
        found = self.functions.get(key)
        if found is None:
            digest = hashlib.sha256(repr(key).encode()).hexdigest()[:12]
            name = f"k_{digest}"
            found = self.functions[key] = DeviceFunction(
                name,
                text.replace("NAME", name),
                signature,
                constants,
                tuple(n for n, kind in enumerate(signature) if kind.startswith("*")),
                tiling.warps,
                checked=checked,
                label=KernelLabel(name, kernel.name, ((kernel.name, origins_of(kernel)),)),
            )
        return found


def _is_named(name: str, text: str) -> bool:
    return any(part == name for part in _words(text))


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def _size_type(symbol: Symbol, tiling: Tiling) -> str:
    """32 bits where the symbol's bounds and all indices fit."""
    high = bounds(symbol)[1]
    return "i32" if not tiling.wide and high is not None and high < 2**31 else "i64"
