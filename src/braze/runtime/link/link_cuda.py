"""A schedule and its launches to something that can be called on a CUDA device."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, final

import torch

from braze.compat.torch.cuda import current_device, current_stream
from braze.ir.graphs.joint_graph import PLAIN, Role
from braze.ir.kernels.kernel import KernelSources, Launch
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.options import Options, config
from braze.runtime.cuda.cubin_cache import BUILDER, build_cubins, triton_version
from braze.runtime.cuda.device_arena import DeviceArena
from braze.runtime.cuda.driver_api import DRIVERS, CudaError
from braze.runtime.cuda.launch_plan import (
    MISALIGNED,
    Entries,
    Places,
    aligned_places,
    encode,
    with_misaligned,
)
from braze.runtime.cuda.memory_reservation import prepare_room
from braze.runtime.cuda.output_allocation import load_launcher_for_devices, made_by_python
from braze.runtime.cuda_graphs import backward_pool_reuse as lent_memory
from braze.runtime.cuda_graphs.backward_pool_reuse import Loan
from braze.runtime.cuda_graphs.capture_analysis import (
    RecordingFacts,
    recording_facts,
    step_refused,
)
from braze.runtime.cuda_graphs.capture_trials import TRIALS, CallLog, remembered_refusals
from braze.runtime.cuda_graphs.cuda_graph import (
    LaunchLog,
    NoRoom,
    NotRecordable,
    Recording,
    RecordingPool,
    outside_of_capture,
)
from braze.runtime.cuda_graphs.graphed_callable import RecordedGraph
from braze.runtime.cuda_graphs.kernel_params import GraphPatches, load_graph_patches
from braze.runtime.cuda_graphs.padded_callable import (
    PaddedGraph,
    PaddingPlan,
    padding_plan,
    padding_text,
    why_not_padded,
)
from braze.runtime.cuda_graphs.partition import PartedGraph, Parts, recording_parts
from braze.runtime.cuda_graphs.policy import (
    RecordingChoice,
    call_refused,
    copied_bytes,
    free_memory,
    held_bytes,
    most_held,
    note_choice,
    piece_bytes,
    recording_choice,
    scratch_of,
    total_memory,
)
from braze.runtime.cuda_graphs.verify_replay import CheckedReplays, can_be_checked
from braze.runtime.cuda_graphs.warmup_pool import calls_apart
from braze.runtime.guards.native_extension import LOADER
from braze.runtime.launch.cpp_compiler import NoCompiler, find_toolchain
from braze.runtime.launch.kernel_launcher import build_ahead
from braze.runtime.launch.launch_program import rounded, write_program
from braze.runtime.launch.result_storage import fresh_results, views_of
from braze.runtime.link.link_cpu import CompiledGraph, callable_of, frames_of
from braze.shapes.expr import as_expr

# Modes in which calls are recorded as CUDA graphs; None: where that pays. In others none is.
RECORDING_MODES = ("reduce-overhead", "max-autotune")


NO_TRITON = NoCompiler(
    "No Triton: Braze builds its CUDA kernels with it. Install it (pip install triton, in the "
    "version that your PyTorch names). Until then graphs run by PyTorch's own kernels.",
    missing="no Triton",
)


def link_device(
    schedule: Schedule,
    sources: KernelSources,
    options: Options,
    device: torch.device,
    role: Role = PLAIN,
    report: Callable[[str], None] = lambda _: None,
) -> CompiledGraph | NoCompiler:
    """As `link`, for the CUDA device that the whole schedule is on. report: is told what the modes
    that record calls cannot do."""
    if sources.segments and triton_version() is None:
        return NO_TRITON
    parts = _parts(schedule, sources, options, device, role)
    if parts is None:
        return _linked(schedule, sources, options, device, role, report)
    return _linked_parts(parts, sources, options, device, role, report)


def _linked_parts(
    parts: Parts,
    sources: KernelSources,
    options: Options,
    device: torch.device,
    role: Role,
    report: Callable[[str], None],
) -> CompiledGraph:
    plain = replace(options, mode="default")
    functions = {launch.function for step in sources.launches for launch in step}
    build_cubins(functions, _architecture(device), options)  # together: parts find them built
    graphs = []
    for part in parts.parts:
        how = plain if part.why_not else options
        graphs.append(_linked(part.schedule, part.sources, how, device, part.role, report, True))
    return PartedGraph(parts, graphs, role.takes_inputs)


def _parts(
    schedule: Schedule, sources: KernelSources, options: Options, device: torch.device, role: Role
) -> Parts | None:
    """The parts that calls are recorded in, where they cannot be as a whole."""
    if options.mode is not None and options.mode not in RECORDING_MODES:
        return None
    asked = options.mode is not None

    def tried(step: ExternStep) -> str:
        return TRIALS.refused(step, device, options)

    def why_not(step: ExternStep) -> str:
        elsewhere = [v for v in views_of(step) if v.buffer.device.type != device.type]
        refused = step_refused(step, device.type) or ("" if asked else call_refused(step))
        return refused or tried(step) or ("a part of it runs on the CPU" if elsewhere else "")

    calls = [step for step in schedule.steps if isinstance(step, ExternStep)]
    refuses = any(map(tried, calls)) if asked else any(map(why_not, calls))
    if not any(map(why_not, calls)) and all(b.device.type == device.type for b in schedule.inputs):
        return None
    facts = recording_facts(schedule, sources, device.type, role.saved_from)
    if not isinstance(facts, str) and not refuses:
        return None
    if held_bytes(schedule) > most_held(asked, total_memory(device)):
        return None
    parts = recording_parts(schedule, sources, role, why_not, device)
    if parts is not None:
        reasons = "; ".join(parts.reasons) or facts
        note_choice(f"parts of calls are recorded (CUDA graphs: {parts.recorded}): {reasons}")
    return parts


def _linked(
    schedule: Schedule,
    sources: KernelSources,
    options: Options,
    device: torch.device,
    role: Role,
    report: Callable[[str], None],
    is_part: bool = False,
) -> CompiledGraph:
    """The schedule as one program, its calls recorded where the mode asks for it or that pays."""
    assert device.index is not None
    program = write_program(schedule, sources, role.takes_inputs, device, role.saved_from)
    names: dict[str, Any] = {
        **program.names,
        "current_stream": current_stream,
    }
    if sources.segments:
        segments = _Segments(schedule, sources, options, device)
        names |= {"relaunch": segments.relaunch, **segments.addresses()}
        names |= segments.launcher.names_for(program.made, device)
    if schedule.slots:
        size = rounded(schedule.arena_size)
        names["new_arena"] = DeviceArena(schedule, size, program.views, device).new
    frames = frames_of(schedule, sources, program.views, on_device=True)
    plain = callable_of(program, dict(names), frames, sources.title)
    made: CompiledGraph = plain
    if options.mode is None or options.mode in RECORDING_MODES:

        def call_with(log: LaunchLog, calls: CallLog) -> CompiledGraph:
            outside = functools.partial(outside_of_capture(log, device), device=device)
            noted = {**names, "relaunch": log.relaunch, **calls.watched(schedule, names)}
            for name, dtype in program.allocates.items():
                noted[name] = functools.partial(outside, dtype=dtype)

            def make(shape: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
                return torch.empty_strided(shape, stride, dtype=dtype, device=device)

            def make_result(shape: object, stride: object, dtype: torch.dtype) -> torch.Tensor:
                return outside(shape, stride, dtype=dtype)

            noted |= made_by_python(program.made, log.launch, make, make_result)
            return callable_of(program, noted, frames, sources.title)

        borrows = role.takes_inputs and not is_part  # other parts read what was saved, too

        def instead() -> CompiledGraph | None:
            parts = None if is_part else _parts(schedule, sources, options, device, role)
            if parts is None:
                return None
            return _linked_parts(parts, sources, options, device, role, report)

        made = _recorded(
            plain, call_with, schedule, sources, options, device, role, report, borrows, instead
        )
        if options.verify_replays and made is not plain and not role.takes_inputs:
            made = CheckedReplays(made, plain, schedule) if can_be_checked(schedule) else made
    if not (role.takes_inputs or is_part):  # a backward has its forward's room
        needs = piece_bytes(schedule, (), role.kept_from) if made is plain else 0
        prepare_room(needs, device, scratch_of(schedule))
    return made if torch.cuda.device_count() == 1 else OnDevice(made, device.index)


def _recorded(
    plain: CompiledGraph,
    call_with: Callable[[LaunchLog, CallLog], CompiledGraph],
    schedule: Schedule,
    sources: KernelSources,
    options: Options,
    device: torch.device,
    role: Role,
    report: Callable[[str], None],
    borrows: bool,
    instead: Callable[[], CompiledGraph | None],
) -> CompiledGraph:
    """The graph with its calls recorded, as the mode asks, or where none does, where that pays.
    call_with: the graph, its launches noted. borrows: a recording may take over what a forward's
    holds. instead: the graph in parts, once a trial has found that it cannot be recorded whole."""
    asked = options.mode is not None
    tried = functools.partial(TRIALS.refused, device=device, options=options)
    choice = recording_choice(schedule, asked, total_memory(device), tried)
    facts = recording_facts(schedule, sources, device.type, role.saved_from)
    refused = facts if isinstance(facts, str) else choice.plain
    say = report if asked else choice.say
    if isinstance(facts, str) or refused:
        say(f"calls are not replayed as a CUDA graph: {refused}")
        return plain
    assert device.index is not None
    has_symbols = bool(facts.sized or schedule.sizes.numbers)
    fresh = fresh_results(schedule, role.saved_from)
    piece = 0 if has_symbols else piece_bytes(schedule, fresh, role.kept_from)
    library, pool = DRIVERS.of(device.index).library, POOLS.of(device)

    def record(inputs: Sequence[object], moving: frozenset[int]) -> Recording:
        log, calls = LaunchLog(library), CallLog(library, device)
        patches = _patches(options)
        _check_room(choice, facts, role, pool, inputs, moving)
        call = call_with(log, calls)
        lender, loan = _loan(pool, inputs) if borrows and facts.may_be_copied() else (None, None)
        if lender is not None:
            choice.say(f"a backward is recorded in {'its own' if loan is None else 'lent'} memory")
        with pool.recording, remembered_refusals(calls, device, options):
            pool.prepare(scratch_of(schedule), is_lent=loan is not None)
            made = Recording(
                call, log, inputs, moving, facts, pool, patches, role.kept_from, loan, piece
            )
            calls.check_host(made.graph_handle())
        if lender is not None and loan is not None:
            lender.serve(made)
        if not asked:
            pool.unasked[made] = choice.held
        return made

    decide = choice.why_not if choice.needs_time() else None
    plan = _padding_plan(schedule, options, role)
    moving = frozenset(() if plan is None else plan.inputs)
    apart = calls_apart(schedule, facts, role, pool.apart)
    made = RecordedGraph(
        plain, record, facts, pool, role.takes_inputs, say, decide, moving, apart, instead
    )
    padded = options.pad_recordings_to
    return made if plan is None else PaddedGraph(made, plan, padded, made.replays)


def paddings(schedule: Schedule, options: Options, role: Role) -> tuple[list[str], list[str]]:
    """Which sizes of a schedule are padded where its calls are recorded, and which are not, and
    why; a sentence each."""
    if options.mode is not None and options.mode not in RECORDING_MODES:
        return [], []
    plan = _padding_plan(schedule, options, role)
    padded = (
        [] if plan is None else [padding_text(s, options.pad_recordings_to) for s in plan.sizes]
    )
    return padded, list(why_not_padded(schedule, role))


def prepare() -> None:
    """Start what takes a second or more beside the first compile: the process that builds kernels,
    and the extension that checks guards. Until that is there, each call of a large model is checked
    guard by guard, for longer than a GPU takes for a training step."""
    if triton_version() is not None:
        BUILDER.start()
    LOADER.ready()
    _begin_extensions()


@functools.cache
def _begin_extensions() -> None:
    """Begin to build what starts kernels, and what replays recordings."""

    def work() -> None:
        options = config.snapshot()
        toolchain = find_toolchain(options)
        if not isinstance(toolchain, NoCompiler):
            for name in ("device_launcher", "graph_patches"):
                build_ahead(name, toolchain, options, ("new_tensors",))

    # Where there can be no more threads, they are built when they are asked for.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=work, name="braze-launchers").start()


@final
class OnDevice:
    """A compiled graph in a process with several devices: its own is made the current one."""

    __slots__ = ("_graph", "_index", "text")

    def __init__(self, graph: CompiledGraph, index: int) -> None:
        self._graph, self._index, self.text = graph, index, getattr(graph, "text", "")

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if current_device() == self._index:
            return self._graph(inputs)
        with torch.cuda.device(self._index):
            return self._graph(inputs)


@final
class RecordingPools:
    """One pool a device, made at the first question."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pools: dict[torch.device, RecordingPool] = {}

    def of(self, device: torch.device) -> RecordingPool:
        """What the recordings of that device share."""
        with self._lock:
            if device not in self._pools:
                self._pools[device] = RecordingPool(device)
            return self._pools[device]


POOLS = RecordingPools()


# --- private ---------------------------------------------------------------------------------


def _patches(options: Options) -> GraphPatches:
    """What replays need; raises NotRecordable where it cannot be built."""
    patches = load_graph_patches(options)
    if patches is None:
        raise NotRecordable("it needs a C++ compiler")
    return patches


def _check_room(
    choice: RecordingChoice,
    facts: RecordingFacts,
    role: Role,
    pool: RecordingPool,
    inputs: Sequence[object],
    moving: frozenset[int],
) -> None:
    """Raise NotRecordable where a replay would copy too much, NoRoom where memory is short."""
    held = pool.addresses if role.takes_inputs else None
    copied = copied_bytes(inputs, moving, facts.fixed_inputs, held, role.parameters)
    if copied > choice.most_copied:
        raise NotRecordable(f"{copied >> 20} MiB of inputs would be copied at each call")
    if not choice.asked and sum(pool.unasked.values()) + choice.held > choice.most:
        raise NoRoom(f"recordings that nobody asked for hold {choice.most >> 20} MiB already")
    if not choice.has_room(free_memory(pool.device)):
        raise NoRoom(f"it would leave less than the {choice.held >> 20} MiB that it takes")


def _padding_plan(schedule: Schedule, options: Options, role: Role) -> PaddingPlan | None:
    if not options.pad_recordings_to or not schedule.padding.sizes or role != PLAIN:
        return None
    return padding_plan(schedule)


def _loan(pool: RecordingPool, inputs: Sequence[object]) -> tuple[Recording | None, Loan | None]:
    """The forward's recording that inputs of a backward lie in, and its memory, if it is free."""
    lender = pool.lender(inputs)
    return lender, lender and lender.lend(inputs, lent_memory.LEAST_LENT)


def _architecture(device: torch.device) -> int:
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


@final
class _Segments:
    """The plans of a graph's segments, and others for pointers that are not aligned, which are
    built when one comes."""

    def __init__(
        self, schedule: Schedule, sources: KernelSources, options: Options, device: torch.device
    ) -> None:
        assert device.index is not None
        self._architecture = _architecture(device)
        self._options = options
        self._driver = DRIVERS.of(device.index)
        toolchain = find_toolchain(options)
        found = None if isinstance(toolchain, NoCompiler) else toolchain
        self.launcher = load_launcher_for_devices(found, options)
        self._places = Places(
            {buffer: place for place, buffer in enumerate(sources.table)},
            dict(schedule.slots),
            {as_expr(size): place for place, size in enumerate(sources.sizes)},
            len(sources.table) if schedule.slots else -1,
        )
        self._segments = sources.segments
        self._launches = [
            [launch for step in sources.launches[s.first : s.last + 1] for launch in step]
            for s in sources.segments
        ]
        self._lock = threading.Lock()
        self._misaligned: dict[tuple[int, frozenset[int]], Any] = {}
        self._plans = self._encode(self._launches)

    def addresses(self) -> dict[str, int]:
        """Each segment's entry: the address of its plan."""
        return {s.entry: ctypes.addressof(p) for s, p in zip(self._segments, self._plans)}

    def relaunch(self, code: int, number: int, table: int, sizes: int, stream: int) -> None:
        """What follows on a launch that was not made: with other kernels, where pointers are not
        aligned. Raises CudaError for what the driver refused."""
        if code == MISALIGNED:
            plan = ctypes.addressof(self._for_misaligned(number, table))
            code = self.launcher.launch(plan, table, sizes, stream)
        if code:
            what = self._driver.describe(code)
            raise CudaError(f"CUDA error: compiled kernels were not started: {what}")

    def _for_misaligned(self, number: int, table: int) -> Any:
        launches, places = self._launches[number], self._places
        pointers = (ctypes.c_long * len(places.table)).from_address(table)
        touched = {place for launch in launches for place in aligned_places(launch, places)}
        misaligned = frozenset([place for place in touched if pointers[place] % 16])
        key = number, misaligned
        with self._lock:
            if key not in self._misaligned:
                made = [with_misaligned(launch, places, misaligned) for launch in launches]
                (self._misaligned[key],) = self._encode([made])
            return self._misaligned[key]

    def _encode(self, segments: Sequence[Sequence[Launch]]) -> list[Any]:
        """The plans, in memory; the kernels are built and loaded."""
        driver = self._driver
        functions = {launch.function for launches in segments for launch in launches}
        cubins = build_cubins(functions, self._architecture, self._options)
        loaded = {function: driver.load(cubin) for function, cubin in cubins.items()}
        entries = Entries(
            driver.address("cuLaunchKernel"), driver.address("cuCtxSetCurrent"), driver.context
        )
        plans = [encode(launches, loaded, self._places, entries) for launches in segments]
        return [(ctypes.c_long * len(plan))(*plan) for plan in plans]
