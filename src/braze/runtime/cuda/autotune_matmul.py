"""`mode="max-autotune"`: which of the ways to compute a product of matrices, or a convolution, is
the quickest.

    what makes an operand, cuBLAS or cuDNN, then what reads its result  "library"
    what makes it, then one kernel, in each of its block sizes          k_12ab..., ...
    one kernel of all, in each of its block sizes                       k_34cd..., ...

Timed and kept like block sizes (`autotune.py`): on random numbers, on which matrix units are
slower than on zeros. The library's way is left only for what is clearly quicker, and where there is
no device, or no Triton.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.grad_mode import without_autocast
from braze.frozen import frozen
from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall
from braze.ir.types import Size, known_sizes
from braze.options import Options
from braze.runtime.cuda.autotune import (
    CACHE_BYTES,
    DeviceTimer,
    Start,
    elements,
    is_timed,
    key_of,
    median_time,
    remembered,
)
from braze.runtime.cuda.cubin_cache import Cubin, triton_version
from braze.shapes.expr import constant_value

LIBRARY = "library"

# The steps of a way, one behind the other: a call, or a kernel as the ways to launch it.
Steps: TypeAlias = Sequence[ExternCall | tuple[Launch, ...]]


def quickest_way(
    ways: Sequence[Steps],
    options: Options,
    measure: Callable[[], Sequence[float]] | None = None,
) -> int:
    """The number of the quickest of some ways; 0, that with the library's call, where none is
    clearly quicker. measure: microseconds of each `runs_of`; by the device if not given."""
    runs = runs_of(ways)
    launches = [part for run in runs for part in run.parts if isinstance(part, Launch)]
    if len(runs) < 2 or not runs[0].is_library or not all(map(is_timed, launches)):
        return 0
    if measure is None:
        if triton_version() is None or not torch.cuda.is_available():
            return 0

        def measure() -> Sequence[float]:
            return _times(runs, options)

    calls = [part for part in runs[0].parts if isinstance(part, ExternCall)]
    facts = [str(call.op) for call in calls]
    facts += [_facts(argument) for call in calls for argument in call.args]
    chosen = remembered(key_of(launches, facts), options, [run.name for run in runs], measure)
    return next(run.way for run in runs if run.name == chosen)


@final
@frozen
class Run:
    """A way with one launch of each kernel; name: of the kernel that multiplies."""

    way: int
    name: str
    parts: tuple[ExternCall | Launch, ...]

    @property
    def is_library(self) -> bool:
        """Whether a call multiplies."""
        return any(isinstance(part, ExternCall) for part in self.parts)


def runs_of(ways: Sequence[Steps]) -> list[Run]:
    """What is timed: of each way, its kernels' launches with each other."""
    found: dict[str, Run] = {}
    for number, steps in enumerate(ways):
        choices: list[tuple[ExternCall | Launch, ...]]
        choices = [(step,) if isinstance(step, ExternCall) else step for step in steps]
        for parts in itertools.product(*choices):
            run = Run(number, _name(parts), parts)
            found.setdefault(run.name, run)
    return list(found.values())


def library_start(call: ExternCall, memory: Mapping[Buffer, torch.Tensor]) -> Start:
    """The call, writing where the rest reads; where its operator has no form of its own that does
    (a convolution), its result is made anew, as it is in a program, and the rest reads random
    numbers."""
    (target,) = call.outputs
    assert target is not None
    given = [_tensor(x, memory) for x in call.args]
    write = call.op.overloadpacket.out
    run: Callable[..., Any] = functools.partial(call.op, *given)
    if torch.Tag.generated not in write.tags:
        out = _viewed(memory[target], target.shape, target.stride)
        run = functools.partial(write, *given, out=out)

    def start() -> int:
        with torch.no_grad(), without_autocast():
            run()
        return 0

    return start


# --- private ---------------------------------------------------------------------------------


def _name(parts: Sequence[ExternCall | Launch]) -> str:
    if any(isinstance(part, ExternCall) for part in parts):
        return LIBRARY
    return "+".join([part.function.name for part in parts if isinstance(part, Launch)])


def _facts(argument: object) -> str:
    if isinstance(argument, BufferView):
        return f"{argument.dtype} {argument.shape} {argument.stride} {argument.offset}"
    return repr(argument)


def _times(runs: Sequence[Run], options: Options) -> list[float]:
    timer = DeviceTimer(options)
    launches = [part for run in runs for part in run.parts if isinstance(part, Launch)]
    (call, *_) = [part for part in runs[0].parts if isinstance(part, ExternCall)]
    buffers = dict.fromkeys(x for y in launches for x in y.arguments if isinstance(x, Buffer))
    buffers |= dict.fromkeys([*_of_call(call)])
    device = next(iter(buffers)).device
    with torch.cuda.device(device):
        cubins = timer.built(list(dict.fromkeys(x.function for x in launches)), device)
        try:
            memory = {b: _filled(b) for b in buffers}
            flushed = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            return [math.inf] * len(runs)
        return [median_time(_start(run, timer, cubins, memory), flushed) for run in runs]


def _of_call(call: ExternCall) -> Iterator[Buffer]:
    yield from (x.buffer for x in call.args if isinstance(x, BufferView))
    yield from (x for x in call.outputs if x is not None)


def _filled(buffer: Buffer) -> torch.Tensor:
    """Random numbers; zeros of the integers that may be places."""
    made = torch.empty(elements(buffer), dtype=buffer.dtype, device=buffer.device)
    if not buffer.dtype.is_floating_point:
        is_byte = buffer.dtype in (torch.int8, torch.uint8)
        return made.random_() if is_byte else made.zero_()
    if buffer.dtype.itemsize == 1:
        return torch.randn(made.shape, device=buffer.device).to(buffer.dtype)
    return made.normal_()


def _start(
    run: Run,
    timer: DeviceTimer,
    cubins: dict[DeviceFunction, Cubin],
    memory: Mapping[Buffer, torch.Tensor],
) -> Start | None:
    """All of it, one behind the other; None where a part cannot run."""
    starts: list[Start] = []
    for part in run.parts:
        if isinstance(part, ExternCall):
            starts.append(library_start(part, memory))
            continue
        start = timer.start_of(part, cubins.get(part.function), memory)
        if start is None:
            return None
        starts.append(start)
    return lambda: next((code for code in [start() for start in starts] if code), 0)


def _tensor(argument: object, memory: Mapping[Buffer, torch.Tensor]) -> object:
    if not isinstance(argument, BufferView):
        return argument
    offset = constant_value(argument.offset)
    assert offset is not None, argument
    return _viewed(memory[argument.buffer], argument.shape, argument.stride, offset)


def _viewed(
    memory: torch.Tensor, shape: Sequence[Size], stride: Sequence[Size], offset: int | None = None
) -> torch.Tensor:
    sizes, steps = known_sizes(shape), known_sizes(stride)
    assert sizes is not None and steps is not None, (shape, stride)
    return torch.as_strided(memory, sizes, steps, offset)
