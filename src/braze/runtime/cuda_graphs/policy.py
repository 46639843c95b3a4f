"""Whether calls of a compiled graph are recorded, from figures of its own.

    a recording              mode=None                       mode="reduce-overhead"
    -----------------------  ------------------------------  ----------------------------
    is little                where starting the work takes   recorded
                             longer than doing it
    is small                 where it takes twice as long    recorded
    is large                 as compiled                     recorded, up to a quarter of
                                                             the device's memory
    of few steps, or of      as compiled                     as the lines above
    library calls that are
    not PyTorch's own

No list says which calls can be recorded: what is tried and fails is remembered (capture_trials.py).
In any mode calls are not recorded where a forward is not, and its backward would copy what was
saved; unasked not where they would leave less memory than they take.

The time on the host is measured, in the second call: the first one builds and sets up. The time on
the device is computed, at rates that calls rarely reach: what lies between the two is gained by a
replay. A recording holds its memory from then on, values that a forward saves too: with mode=None
only what fits a share of the device's memory is recorded.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

import torch

from braze.compat.torch.registered_ops import NAMESPACE
from braze.frozen import frozen
from braze.ir.device_model import STEP, DeviceModel
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule, Step
from braze.ir.types import Size
from braze.runtime.cuda.cublas_workspace import Scratch
from braze.runtime.launch.result_storage import views_of
from braze.shapes.expr import as_expr, symbols
from braze.shapes.substitution import evaluate

_LOG = logging.getLogger("braze.perf_hints")

# Shares of the device's memory: of a recording that is little, or small, or that the mode asks for;
# of all together that nobody asked for; of inputs that are copied to a fixed place before a replay,
# unasked and asked. What nobody asked for leaves as much free as it takes.
LITTLE_SHARE = 1 / 128
SMALL_SHARE = 1 / 16
ASKED_SHARE = 1 / 4
ALL_SHARE = 1 / 8
COPIED_SHARE = 1 / 512
COPIED_IF_ASKED_SHARE = 1 / 64
_RATIO_SMALL = 2.0
# Bytes that are worth one piece of the device's memory: smaller blocks share pieces of 20 MiB as it
# is. Of a result that is worth a block of its own.
LEAST_PIECE = 16 << 20
LARGE_RESULT = 64 << 20
# Bytes up to which PyTorch's allocator cuts what is asked for of other pieces, of 2 MiB.
SMALL_BLOCK = 1 << 20
# Launches that one replay costs as much as.
LEAST_STEPS = 6


# PyTorch's operators, and what Braze has among its own that does nothing on the host.
_OWN = ("aten::", f"{NAMESPACE}::keep_whole")
# Operator -> the place of the first factor among its tensors.
_PRODUCTS: Mapping[str, int] = {
    "aten::mm": 0,
    "aten::bmm": 0,
    "aten::addmm": 1,
    "aten::baddbmm": 1,
}


@final
@frozen
class StepWork:
    """What one step does on the device. moved: bytes read and written; operations: of products, on
    items of `itemsize` bytes."""

    moved: int
    operations: int = 0
    itemsize: int = 4

    def seconds(self, device: DeviceModel) -> float:
        """What it takes at the least. Without products the rate of products is not asked for."""
        of_products = self.operations / device.products(self.itemsize) if self.operations else 0.0
        return max(STEP, self.moved / device.memory, of_products)


@final
@frozen
class RecordingChoice:
    """work, device: what a call does, and on what; held: bytes of a recording; memory: of the
    device; plain: why a call is not recorded, whatever it takes, or ""; asked: the mode asks for
    it. The device's rates are first read when the second call decides: the first one, and the
    compile before it, measure none."""

    work: tuple[StepWork, ...]
    device: DeviceModel
    held: int
    memory: int
    plain: str
    asked: bool

    @property
    def most(self) -> int:
        """Bytes of all recordings that nobody asked for."""
        return int(self.memory * ALL_SHARE)

    @property
    def most_copied(self) -> int:
        """Bytes of inputs that a replay may copy."""
        return int(self.memory * (COPIED_IF_ASKED_SHARE if self.asked else COPIED_SHARE))

    def has_room(self, free: int) -> bool:
        """Whether the device has as much again as the recording takes. free: bytes of the device,
        what lies idle in PyTorch's allocator included."""
        return self.asked or free >= 2 * self.held

    @property
    def device_s(self) -> float:
        """Seconds of a call on the device, at the least."""
        return sum(step.seconds(self.device) for step in self.work)

    def needs_time(self) -> bool:
        """Whether the second call's time on the host decides."""
        return not self.asked

    def why_not(self, host_s: float) -> str:
        """Why calls are not recorded, or "". host_s: seconds of a call on the host."""
        device_s = self.device_s
        figures = (
            f"the host needs {1e3 * host_s:.2f} ms to start what takes the device "
            f"{1e3 * device_s:.2f} ms at its best; a recording holds {self.held >> 20} MiB"
        )
        ratio = 1.0 if self.held <= self.memory * LITTLE_SHARE else _RATIO_SMALL
        if host_s <= device_s * ratio:
            return figures
        self.say(f"calls are recorded as a CUDA graph: {figures}")
        return ""

    def say(self, text: str) -> None:
        """A line in the log."""
        note_choice(text)


def note_choice(text: str) -> None:
    """A line in the log."""
    _LOG.info("%s", text, extra={"origin": "", "artefact": "perf_hints"})


def recording_choice(
    schedule: Schedule,
    asked: bool,
    memory: int,
    tried: Callable[[ExternStep], str] = lambda step: "",
) -> RecordingChoice:
    """What speaks for recording the calls of a schedule. memory: bytes of the device. tried: why a
    library call is known not to be recordable, or ""."""
    held = held_bytes(schedule)
    plain = "" if held <= most_held(asked, memory) else f"a recording would hold {held >> 20} MiB"
    work = tuple(map(_work, schedule.steps))
    calls = [step for step in schedule.steps if isinstance(step, ExternStep)]
    refused = {tried(s) or ("" if asked else call_refused(s)) for s in calls} - {""}
    if refused:
        plain = min(refused)
    if asked:
        return RecordingChoice(work, schedule.device, held, memory, plain, asked)
    if len(schedule.steps) < LEAST_STEPS:
        plain = "there is little to start"
    return RecordingChoice(work, schedule.device, held, memory, plain, asked)


def most_held(asked: bool, memory: int) -> float:
    """Bytes that one region's recordings may hold."""
    return memory * (ASKED_SHARE if asked else SMALL_SHARE)


def scratch_of(schedule: Schedule) -> Scratch:
    """What matrix products of the library among its steps work in."""
    found = Scratch.NONE
    for step in [step for step in schedule.steps if isinstance(step, ExternStep)]:
        place = _PRODUCTS.get(step.call.op._schema.name)
        if place is not None:
            added = views_of(step)[:place]
            found |= Scratch.BIASED if [len(x.shape) for x in added] == [1] else Scratch.PLAIN
    return found


def call_refused(step: ExternStep) -> str:
    """Why a library call is not recorded where nobody asks for it, or "": a kernel of the program's
    may do more on the host than start work, which no replay repeats."""
    name = step.call.op._schema.name
    return "" if name.startswith(_OWN) else f"{name} is not an operator of PyTorch's own"


def device_seconds(schedule: Schedule) -> float:
    """What the steps take at the least: bytes once at the rate of memory, or products at theirs."""
    return sum(_work(step).seconds(schedule.device) for step in schedule.steps)


def held_bytes(schedule: Schedule, elsewhere: Collection[Buffer] = (), above: int = 0) -> int:
    """Most bytes that are allocated at once, and are not the inputs' nor elsewhere, of what has
    more bytes than `above`."""
    last = dict(schedule.last_use)
    given = {*schedule.inputs, *(b for b, _ in schedule.constants), *dict(schedule.slots)}
    given |= {*elsewhere}
    alive: dict[Buffer, int] = {}
    most = 0
    for number, step in enumerate(schedule.steps):
        for buffer in _touched(step):
            if buffer not in given and (size := _bytes(buffer)) > above:
                alive[buffer] = size
        most = max(most, sum(alive.values()))
        for buffer in [b for b in alive if last.get(b, number + 1) <= number]:
            del alive[buffer]
    return most + (schedule.arena_size if schedule.arena_size > above else 0)


def piece_bytes(schedule: Schedule, fresh: Iterable[Buffer], kept_from: int) -> int:
    """What a recording takes of its memory in one piece, where that is worth one.

    fresh: results that are not in it. kept_from: of the results before that number, which the
    program sees, a large one is a block of its own: it is made last, when what is free of the piece
    lies between what is saved, and its backward finds the block free for its gradient. What is
    small is no part of it: the allocator has it elsewhere.
    """
    large = [v.buffer for v in schedule.outputs[:kept_from] if _bytes(v.buffer) >= LARGE_RESULT]
    size = held_bytes(schedule, {*fresh, *large}, SMALL_BLOCK)
    return size if size >= LEAST_PIECE else 0


def copied_bytes(
    inputs: Sequence[Any],
    moving: Collection[int],
    fixed: Collection[int],
    held: Collection[int] | None,
    parameters: Collection[int] = (),
) -> int:
    """Bytes of library calls' inputs that are, or will be, somewhere else at each call.

    moving, fixed: numbers of those that were, and of all. held: for a backward, the addresses of
    what recordings of forwards hold: what else was saved, but for parameters, moves sooner or
    later; None: the graph is no backward. parameters: numbers of those that are such, or views.
    """
    numbers = {*moving}
    if held is not None:
        loose = [n for n in fixed if inputs[n].data_ptr() not in held]
        numbers |= {n for n in loose if not inputs[n].requires_grad and n not in parameters}
    return sum(int(inputs[n].nbytes) for n in numbers)


# --- private ---------------------------------------------------------------------------------


def _touched(step: Step) -> Iterator[Buffer]:
    if isinstance(step, Kernel):
        yield from step.memory
    else:
        yield from (b for b in step.call.outputs if b is not None)


def _work(step: Step) -> StepWork:
    if isinstance(step, Kernel):
        points = max(_count(n for _, n in (*step.rows, *phase.loops)) for phase in step.phases)
        moved = sum(min(_bytes(b), points * b.dtype.itemsize) for b in step.memory)
        if step.product is None:
            return StepWork(moved)
        first, second = step.product.first, step.product.second
        done = 2 * _count(first.shape) * _number(second.shape[-1])
        return StepWork(moved, done, first.dtype.itemsize)
    views = views_of(step)
    made = [b for b in step.call.outputs if b is not None]
    moved = sum(_count(v.shape) * v.dtype.itemsize for v in views) + sum(map(_bytes, made))
    if not views:
        return StepWork(moved)
    return StepWork(moved, int(_operations(step.call, views)), views[0].dtype.itemsize)


def _operations(call: ExternCall, views: list[BufferView]) -> float:
    """Multiplications and additions of a library call; 0 for what only moves."""
    name = call.op._schema.name
    position = _PRODUCTS.get(name)
    if position is not None:
        first, second = views[position : position + 2]
        return 2 * _count(first.shape) * _number(second.shape[-1])
    if "convolution" in name:
        backward = name.endswith("backward")
        weight = views[2 if backward else 1]
        made = views[0] if backward else call.outputs[0]
        assert made is not None
        places = _count(made.shape) / _number(weight.shape[0])
        return 2 * places * _count(weight.shape) * (2 if backward else 1)
    if "attention" in name:
        backward = name.endswith("backward")
        query, key = views[1:3] if backward else views[:2]
        return 4 * _count(query.shape) * _number(key.shape[-2]) * (2.5 if backward else 1)
    return 0


def _bytes(buffer: Buffer) -> int:
    return _count(buffer.shape) * buffer.dtype.itemsize


def _count(shape: Iterable[Size]) -> int:
    return math.prod(map(_number, shape))


def _number(size: Size) -> int:
    """The size; with symbols in it, what it was at the first call."""
    expr = as_expr(size)
    return evaluate(expr, {s: 1 if s.hint is None else s.hint for s in symbols(expr)})


def total_memory(device: torch.device) -> int:
    """Bytes of the device."""
    return int(torch.cuda.get_device_properties(device).total_memory)


def free_memory(device: torch.device) -> int:
    """Bytes of the device that nothing is in, what lies idle in PyTorch's allocator included."""
    free, _ = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + idle)
