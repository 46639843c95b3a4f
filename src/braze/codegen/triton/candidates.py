"""Other block sizes than the cost model's, for `mode="max-autotune"` to time.

One thing changes at a time, or the sides of a block together; the cost model's own choice comes
first. A row that is held keeps its block: it is as long as the row.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from braze.codegen.triton.attention import attention_tilings
from braze.codegen.triton.attention_gradients import gradient_tilings
from braze.codegen.triton.product import product_tilings
from braze.codegen.triton.prologue import may_pay
from braze.codegen.triton.tiling import Tiling, is_wide, plan_tiling
from braze.ir.device_model import DeviceModel
from braze.ir.kernels.schedule import AttentionGradients, Kernel, scatters

_FACTORS = (0.5, 2.0)
_LARGEST_BLOCK = 65536  # points of a program
_MOST_WARPS = 32
_THREADS = 32  # of a warp
_MOST_STAGES = 4


def candidate_tilings(kernel: Kernel, device: DeviceModel) -> list[Tiling]:
    """The cost model's tiling, then others; each once. None where a matrix would be computed by
    too many programs again."""
    if kernel.attention is not None:
        return _of_attention(kernel, device)
    if kernel.product is not None:
        found = product_tilings(kernel, is_wide(kernel), device)
        return [tiling for tiling in found if may_pay(kernel, tiling, device)]
    base = plan_tiling(kernel, device)
    if kernel.spread is not None:  # its arrivals are zero once only, not at each turn of a clock
        return [base]
    if scatters(kernel):  # by indices that a tuner's memory does not hold
        return [base]
    varied = {tiling: None for tiling in (base, *_others(base)) if _is_sensible(tiling)}
    return [base, *(tiling for tiling in varied if tiling != base)]


def first_tiling(kernel: Kernel, device: DeviceModel) -> Tiling:
    """The cost model's tiling."""
    if kernel.attention is not None:
        return _of_attention(kernel, device)[0]
    if kernel.product is not None:
        return product_tilings(kernel, is_wide(kernel), device)[0]
    return plan_tiling(kernel, device)


# --- private ---------------------------------------------------------------------------------


def _of_attention(kernel: Kernel, device: DeviceModel) -> list[Tiling]:
    is_backward = isinstance(kernel.attention, AttentionGradients)
    tilings = gradient_tilings if is_backward else attention_tilings
    return tilings(kernel, is_wide(kernel), device)


def _others(base: Tiling) -> Iterator[Tiling]:
    for factor in _FACTORS:
        yield replace(base, warps=int(base.warps * factor))
    if any(d.walked for d in base.dimensions) or base.together > 1:
        for stages in range(1, _MOST_STAGES + 1):
            yield replace(base, stages=stages)
    free = [n for n, d in enumerate(base.dimensions) if d.block and (d.walked or d.name != "r")]
    for factors in itertools.product((1.0, *_FACTORS), repeat=len(free)):
        dimensions = list(base.dimensions)
        for number, factor in zip(free, factors, strict=True):
            block = int(dimensions[number].block * factor)
            dimensions[number] = replace(dimensions[number], block=block)
        resized = replace(base, dimensions=tuple(dimensions))
        yield resized
        scale = _points(resized) / max(_points(base), 1)
        yield replace(resized, warps=int(base.warps * scale))


def _points(tiling: Tiling) -> int:
    total = 1
    for dimension in tiling.axes:
        total *= dimension.block
    return total


def _is_sensible(tiling: Tiling) -> bool:
    """Whether there are threads, not more than points, and blocks that keep their axes."""
    blocks = [d.block for d in tiling.axes]
    if not blocks or min(blocks) < 2 or not 1 <= tiling.warps <= _MOST_WARPS:
        return False
    return _THREADS * tiling.warps <= _points(tiling) <= _LARGEST_BLOCK
