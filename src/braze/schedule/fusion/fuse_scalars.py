"""Merges consecutive kernels that compute single numbers.

    kernel a: steps0[] = steps0[] + 1
    kernel b: steps1[] = steps1[] + 1        ->      kernel a: both

A model in training counts the batches of each of its norms, an optimizer its steps. The counts are
written last, far from where each was made; there they come first, so that they stand beside each
other, and so does what else is written last: kernels of one form can be started together then. None
may write what another one reads or writes.
"""

from __future__ import annotations

from dataclasses import replace

from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.schedule import Kernel, Step, Store
from braze.schedule.memory.allocate import memory_of, written
from braze.schedule.memory.inplace_inputs import Rewritten

_MOST_BUFFERS = 40  # behind pointers


def join_numbers(final: Rewritten) -> Rewritten:
    """The steps with such kernels joined; those that write in place with such only."""
    made: list[Step] = []
    settled = final.settled
    for number, step in enumerate(_numbers_first(final)):
        before = made[-1] if made and number != final.settled else None
        joined = _joined(before, step)
        if joined is None:
            made.append(step)
        else:
            made[-1] = joined
            settled -= number < final.settled
    return replace(final, steps=tuple(made), settled=settled)


# --- private ---------------------------------------------------------------------------------


def _numbers_first(final: Rewritten) -> list[Step]:
    """The steps; of those that write in place, kernels of numbers that need no other come first."""
    numbers: list[Step] = []
    others: list[Step] = []
    blocked: set[Buffer] = set()  # what others write
    touched: set[Buffer] = set()
    for step in final.steps[final.settled :]:
        writes, memory = {*written(step)}, {*memory_of(step)}
        is_of_numbers = isinstance(step, Kernel) and _is_of_numbers(step)
        if is_of_numbers and not blocked & memory and not touched & writes:
            numbers.append(step)
        else:
            others.append(step)
            blocked |= writes
            touched |= memory
    return [*final.steps[: final.settled], *numbers, *others]


def _joined(first: Step | None, second: Step) -> Kernel | None:
    if not isinstance(first, Kernel) or not isinstance(second, Kernel):
        return None
    if not (_is_of_numbers(first) and _is_of_numbers(second)):
        return None
    if _touches(second, written(first)):
        return None
    memory = tuple(dict.fromkeys([*first.memory, *second.memory]))
    if len(memory) > _MOST_BUFFERS or _touches(first, written(second)):
        return None
    (phase,), (other,) = first.phases, second.phases
    return replace(first, phases=(replace(phase, body=(*phase.body, *other.body)),), memory=memory)


def _is_of_numbers(kernel: Kernel) -> bool:
    """Whether it stores numbers, in no loop."""
    if kernel.rows or len(kernel.phases) != 1 or kernel.product is not None:
        return False
    (phase,) = kernel.phases
    return not phase.loops and not phase.row and all(isinstance(s, Store) for s in phase.body)


def _touches(kernel: Kernel, buffers: tuple[Buffer, ...]) -> bool:
    return bool({*kernel.memory} & {*buffers})
