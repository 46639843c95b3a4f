"""`mode="max-autotune"`: whether a product of matrices is computed by a kernel of ours.

    cuBLAS, then the kernel that reads its result      "library"
    one kernel, in each of its block sizes             k_12ab..., ...

Timed and kept like block sizes (`runtime/tuning.py`): on random numbers, on which matrix units are
slower than on zeros. The library's way is left only for what is clearly quicker, and where there is
no device, or no Triton.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from braze.ir.kernel import Launch
from braze.ir.loops import Buffer, BufferView, ExternCall
from braze.options import Options
from braze.runtime.cubins import triton_version
from braze.runtime.tuning import (
    CACHE_BYTES,
    DeviceTimer,
    Start,
    elements,
    is_timed,
    key_of,
    median_time,
    remembered,
)

LIBRARY = "library"


def is_product_quicker(
    fused: Sequence[Launch],
    call: ExternCall,
    rest: Sequence[Launch],
    options: Options,
    measure: Callable[[], Sequence[float]] | None = None,
) -> bool:
    """Whether one of the fused launches is clearly quicker than the call and the first of the
    rest. measure: microseconds of that, then of each launch; by the device if not given."""
    if not fused or not is_timed(fused[0]) or not rest or not is_timed(rest[0]):
        return False
    if measure is None:
        if triton_version() is None or not torch.cuda.is_available():
            return False

        def measure() -> Sequence[float]:
            return _times(fused, call, rest[0], options)

    names = [LIBRARY, *(launch.function.name for launch in fused)]
    key = key_of([*fused, rest[0]], [str(call.op), *map(_facts, call.args)])
    return remembered(options.cache_dir / "tuning" / f"{key}.json", names, measure) != LIBRARY


# --- private ---------------------------------------------------------------------------------


def _facts(argument: Any) -> str:
    if isinstance(argument, BufferView):
        return f"{argument.dtype} {argument.shape} {argument.stride} {argument.offset}"
    return repr(argument)


def _times(
    fused: Sequence[Launch], call: ExternCall, rest: Launch, options: Options
) -> list[float]:
    timer = DeviceTimer(options)
    launches = [rest, *fused]
    buffers = dict.fromkeys(x for y in launches for x in y.arguments if isinstance(x, Buffer))
    device = rest.arguments[0].device  # type: ignore[union-attr]
    with torch.cuda.device(device):
        cubins = timer.built([launch.function for launch in launches], device)
        try:
            memory = {b: _filled(b) for b in buffers}
            flushed = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:
            return [math.inf] * len(launches)
        first, *others = [timer.start_of(x, cubins.get(x.function), memory) for x in launches]
        starts = [_library(call, first, memory), *others]
        return [median_time(start, flushed) for start in starts]


def _filled(buffer: Buffer) -> torch.Tensor:
    made = torch.empty(elements(buffer), dtype=buffer.dtype, device=buffer.device)
    return made.normal_() if buffer.dtype.is_floating_point else made.zero_()


def _library(
    call: ExternCall, rest: Start | None, memory: Mapping[Buffer, torch.Tensor]
) -> Start | None:
    """The call, writing where the rest reads, then the rest."""
    (target,) = call.outputs
    if rest is None or target is None:
        return None
    given = [_tensor(x, memory) for x in call.args]
    out = torch.as_strided(memory[target], target.shape, target.stride)  # type: ignore[arg-type]
    write = call.op.overloadpacket.out

    def start() -> int:
        with torch.no_grad():
            write(*given, out=out)
        return rest()

    return start


def _tensor(argument: Any, memory: Mapping[Buffer, torch.Tensor]) -> Any:
    if not isinstance(argument, BufferView):
        return argument
    found = memory[argument.buffer]
    return torch.as_strided(found, argument.shape, argument.stride, int(argument.offset))  # type: ignore[arg-type]
