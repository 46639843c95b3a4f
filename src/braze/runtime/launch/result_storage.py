"""Which buffers of a schedule library calls are given, and which results have fresh memory."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from braze.ir.kernels.loops import Buffer, BufferView
from braze.ir.kernels.schedule import ExternStep, Schedule, Step
from braze.ir.types import Size
from braze.shapes.expr import Expr, as_expr, constant_value


def is_whole(view: BufferView) -> bool:
    """Whether the view is its buffer."""
    buffer = view.buffer
    return (
        view.shape == buffer.shape
        and view.stride == buffer.stride
        and view.offset == 0
        and view.dtype == buffer.dtype
    )


def is_transposed(view: BufferView) -> bool:
    """Whether the view is its buffer with the last two dimensions swapped, as a weight often is."""
    buffer = view.buffer
    if len(buffer.shape) < 2 or constant_value(view.offset) != 0:
        return False
    same = [(*sizes[:-2], sizes[-1], sizes[-2]) for sizes in (buffer.shape, buffer.stride)]
    return [view.shape, view.stride] == same and view.dtype == buffer.dtype


def fills(view: BufferView) -> bool:
    """Whether the view has each element of its buffer, in the order of memory: logits that a
    program sees as (batch, length, words), and that are computed as (rows, words)."""
    buffer = view.buffer
    return (
        view.dtype == buffer.dtype
        and constant_value(view.offset) == 0
        and _runs(view.shape, view.stride) == _runs(buffer.shape, buffer.stride)
    )


def views_of(step: ExternStep) -> list[BufferView]:
    """The tensors that a library call is given."""
    return list(_views_in((*step.call.args, *(value for _, value in step.call.kwargs))))


def buffers_of(step: Step) -> set[Buffer]:
    """What a step reads or writes."""
    if isinstance(step, ExternStep):
        made = {buffer for buffer in step.call.outputs if buffer is not None}
        return made | {view.buffer for view in views_of(step)}
    return {*step.memory}


def given_to_library(schedule: Schedule) -> set[Buffer]:
    """What library calls read or make, the copies at the end among them."""
    found = {target for target, _ in schedule.mutations}
    found |= {view.buffer for _, view in schedule.mutations}
    for step in schedule.steps:
        if isinstance(step, ExternStep):
            found |= buffers_of(step)
    return found


def whole_results(schedule: Schedule, saved_from: int = sys.maxsize) -> dict[Buffer, int]:
    """The first result that is all of a buffer which is neither an input nor a constant.

    In another shape, only of what no library call is given, and where nothing is saved for a
    backward: the rest can be left where it is, and a gradient of its size finds a place there."""
    given = {*schedule.inputs, *(b for b, _ in schedule.constants)}
    foreign, any_shape = given_to_library(schedule), saved_from >= len(schedule.outputs)
    found: dict[Buffer, int] = {}
    for number, view in enumerate(schedule.outputs):
        if view.buffer in given:
            continue
        if is_whole(view) or (any_shape and view.buffer not in foreign and fills(view)):
            found.setdefault(view.buffer, number)
    return found


def fresh_results(schedule: Schedule, saved_from: int = sys.maxsize) -> dict[Buffer, int]:
    """Those of them that our kernels alone write and read: a replay gives them fresh memory.

    saved_from: results from that number on wait for a backward, whose library calls read them at
    one place: where others of them stay in a recording's memory, these do, too."""
    foreign, whole = given_to_library(schedule), whole_results(schedule, saved_from)
    some_stay = any(n >= saved_from for b, n in whole.items() if b in foreign)
    least = saved_from if some_stay else sys.maxsize
    return {b: n for b, n in whole.items() if b not in foreign and n < least}


# --- private ---------------------------------------------------------------------------------


def _runs(shape: Sequence[Size], stride: Sequence[Size]) -> list[tuple[Expr, Expr]]:
    """Size and stride of the dimensions, those joined that lie in memory as one."""
    found: list[tuple[Expr, Expr]] = []
    for size, step in zip(map(as_expr, shape), map(as_expr, stride), strict=True):
        if constant_value(size) == 1:
            continue
        if found and found[-1][1] == size * step:
            found[-1] = (found[-1][0] * size, step)
        else:
            found.append((size, step))
    return found


def _views_in(arguments: Iterable[object]) -> Iterator[BufferView]:
    for argument in arguments:
        if isinstance(argument, BufferView):
            yield argument
        elif isinstance(argument, (list, tuple)):
            yield from _views_in(argument)
