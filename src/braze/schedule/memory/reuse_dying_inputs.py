"""Reuses a buffer for a kernel's result at the buffer's last read.

    kernel k0: s = max of x[i0, :]                        kernel k0: s = max of x[i0, :]
               y[i0, r0] = exp(x[i0, r0] - s)                        x[i0, r0] = exp(x[i0, r0] - s)
    z = mm(y, w)                                   ->     z = mm(x, w)

Where most memory is taken, a training step often computes with the logits: they, and the gradient
of them, need one memory; in inference a batch norm's result lies where the convolution put its
own. Left alone: what is small or of symbolic size, what the program sees or is given, what an
operator may share, or allocated where it could write into planned memory, and what is read
elsewhere than written: by other programs of a row, or where a kernel multiplies matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from braze.ir.kernels.loops import Buffer, LoopProgram
from braze.ir.kernels.scalars import loads
from braze.ir.kernels.schedule import ExternStep, Kernel, Step, scatters
from braze.schedule.analysis.uses import extern_reading, extern_reads, may_alias
from braze.schedule.memory.allocate import memory_of, size_of, written
from braze.schedule.memory.inplace_inputs import may_take, placed
from braze.schedule.target import Target
from braze.shapes.expr import constant_value

Alike: TypeAlias = tuple[tuple[Kernel, Kernel], ...]

_LEAST = 1 << 16  # bytes: below, memory is no matter


def write_over(
    program: LoopProgram, steps: Sequence[Step], target: Target, alike: Alike = ()
) -> tuple[list[Step], Alike]:
    """The steps, in which large values take the memory of others that nobody reads any more. alike:
    which of them have the text of another one; so do those that are changed in the same way."""
    state = _KeptBuffers(_kept(program, steps), _last_uses(steps))
    for number, step in enumerate(steps):
        step = _renamed(step, state.places)
        if isinstance(step, Kernel):
            step = state.with_values_placed(step, number)
        if isinstance(step, Kernel) or _is_ours(step, target):
            state.made.update(written(step))
        state.steps.append(step)
    return state.steps, _alike(steps, state, alike)


# --- private ---------------------------------------------------------------------------------


@dataclass(slots=True)
class _KeptBuffers:
    """kept: buffers that keep the memory they have. last: the last step that touches a buffer.
    places: values -> in whose memory they are. made: what steps have written to memory of ours."""

    kept: set[Buffer]
    last: dict[Buffer, int]
    places: dict[Buffer, Buffer] = field(default_factory=dict)
    made: set[Buffer] = field(default_factory=set)
    steps: list[Step] = field(default_factory=list)

    def with_values_placed(self, kernel: Kernel, number: int) -> Kernel:
        """The kernel, with what it writes in the memory of what it reads last."""
        if kernel.product or kernel.spread or kernel.attention:
            return kernel
        behind = {load.buffer for column in kernel.columns for load in loads(column.body)}
        for value in written(kernel):
            is_placed = value in self.kept or value in self.made or value in behind
            if is_placed or not _is_large(value):
                continue
            ended = (b for b in kernel.memory if b not in behind and self._ends_with(b, number))
            done = (b for b in ended if _is_like(value, b))
            over = next((b for b in done if may_take(kernel, value, b, earlier_phases=True)), None)
            if over is not None:
                self.places[value] = over
                self.last[over] = self.last[value]
                kernel = placed(kernel, {value: over})
        return kernel

    def _ends_with(self, buffer: Buffer, number: int) -> bool:
        return buffer in self.made and buffer not in self.kept and self.last[buffer] == number


def _alike(steps: Sequence[Step], state: _KeptBuffers, alike: Alike) -> Alike:
    """Kernels that others have the text of: those were alike, and the same of their buffers took
    the memory of the same ones."""
    if not alike:
        return ()
    like, first = dict(alike), dict[object, Kernel]()
    found = []
    for step, made in zip(steps, state.steps, strict=True):
        if isinstance(step, Kernel) and isinstance(made, Kernel):
            places = {buffer: n for n, buffer in enumerate(made.memory)}
            taken = tuple([places[state.places.get(b, b)] for b in step.memory])
            model = first.setdefault((like.get(step, step), taken), made)
            if model is not made:
                found.append((made, model))
    return tuple(found)


def _kept(program: LoopProgram, steps: Sequence[Step]) -> set[Buffer]:
    """What the program is given and what it sees, what elements are scattered into, and what may
    share memory by an operator."""
    found = {*program.inputs, *(buffer for buffer, _ in program.constants)}
    found |= {view.buffer for view in program.outputs}
    found |= {buffer for target, view in program.mutations for buffer in (target, view.buffer)}
    for step in steps:
        if isinstance(step, Kernel):
            found.update(store.target for store in scatters(step))
        elif step.in_place_op is not None or may_alias(step.call):
            found.update(extern_reads(step.call))
            found.update(written(step))
    return found


def _is_ours(step: ExternStep, target: Target) -> bool:
    """Whether nobody else can refer to what a library call makes. An operator of somebody else may
    return what it was given, whatever its schema says."""
    if step.out_op is not None:
        return True
    return not target.plans_results and step.call.op.namespace == "aten"


def _last_uses(steps: Sequence[Step]) -> dict[Buffer, int]:
    return {b: number for number, step in enumerate(steps) for b in _touched(step)}


def _touched(step: Step) -> Iterator[Buffer]:
    yield from memory_of(step)
    yield from written(step)


def _renamed(step: Step, places: dict[Buffer, Buffer]) -> Step:
    if places.keys().isdisjoint(memory_of(step)):
        return step
    if isinstance(step, Kernel):
        return placed(step, places)
    return replace(step, call=extern_reading(step.call, places))


def _is_large(buffer: Buffer) -> bool:
    return (constant_value(size_of(buffer)) or 0) >= _LEAST


def _is_like(value: Buffer, other: Buffer) -> bool:
    return (value.shape, value.stride, value.dtype, value.device) == (
        other.shape,
        other.stride,
        other.dtype,
        other.device,
    )
