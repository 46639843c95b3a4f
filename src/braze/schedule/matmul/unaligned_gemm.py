"""Schedules large matrix products with unaligned rows (`unaligned_rows.py`) as kernels of Braze's
own.

    b2 = aten.mm(x, w)
becomes
    kernel k_b2: b3 = x @ w;  for m < 4096, n < 50257: b2[m, n] = bf16(b3[m, n])

What may be padded without being there twice is, before (`rewrite/align_products.py`), and comes
here aligned.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from braze.ir.graphs.graph import main_device
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.schedule import ExternStep, Kernel, Step
from braze.ir.kernels.unaligned_rows import has_odd_rows
from braze.schedule.matmul.matmul_kernel import operands_of, product_kernel
from braze.schedule.memory.allocate import memory_of
from braze.schedule.simplify.normalize import Names

_LOG = logging.getLogger("braze.fusion")


def write_odd_rows(program: LoopProgram, steps: Sequence[Step], names: Names) -> tuple[Step, ...]:
    """The steps of a program, as many, with such products as kernels; not those on the host of what
    has parts on a device."""
    buffers = {*program.inputs, *dict(program.constants)}.union(*map(memory_of, steps))
    device = main_device(frozenset([buffer.device for buffer in buffers]))
    return tuple([_kernel(x, device, names) or x for x in steps])


def _kernel(step: Step, device: torch.device | None, names: Names) -> Kernel | None:
    if not isinstance(step, ExternStep):
        return None
    call, operands = step.call, operands_of(step.call)
    if operands is None or operands.batch > 1 or operands.first.buffer.device != device:
        return None
    first, second, (target,) = operands.first, operands.second, call.outputs
    assert target is not None
    sizes, strides = (operands.m, first.shape[-1], operands.n), (first, second, target)
    if not has_odd_rows(first.dtype, sizes, [x.stride for x in strides]):
        return None
    made = product_kernel(call, operands, None, names, is_kept=True)
    if made is not None:
        text = f"{call.op} to {target}: a kernel of ours, which writes rows of any alignment"
        _LOG.info("%s", text, extra={"origin": "", "artefact": "fusion"})
    return made
