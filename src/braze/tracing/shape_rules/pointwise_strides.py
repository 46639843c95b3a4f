"""Dimension order and output strides of eager's pointwise kernels (TensorIterator).

    f32[1, 1, s0, 1], strides (s0, s0, 1, 2)    dimensions 2, 3, 1, 0: strides (s0, s0, 1, s0)

Which stride is the larger is asked of sizes, and guarded. Not where both dimensions have the size
one: such two may mostly be visited either way, and each way is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TypeAlias

from braze.shapes.conditions import known_equality, known_less
from braze.shapes.demands import is_computed
from braze.shapes.symbolic import hint_of

Shape = tuple[int, ...]
Operands: TypeAlias = tuple[tuple[Shape, Shape], ...]
_Compare: TypeAlias = Callable[[int, int], int]
_MOST_TRIES = 32


def iteration_order(shape: Shape, operands: Operands) -> list[int]:
    """Dimensions from the fastest to the slowest, as eager's pointwise kernels visit them.

    operands: (shape, stride) of each, broadcast to `shape`. The order is an insertion sort in
    which the first operand that tells two dimensions apart decides.
    """
    strides = [_broadcast_stride(shape, *operand) for operand in operands]
    if len([size for size in shape if _is_one(size)]) > 1:
        found = _tried_order(shape, strides)
        if found is not None:
            return found
    return _sorted(len(shape), lambda a, b: _compare_dims(shape, strides, a, b))


# --- private -------------------------------------------------------------------------------------


def _sorted(rank: int, compare: _Compare) -> list[int]:
    order = list(range(rank - 1, -1, -1))
    for start in range(1, rank):
        moving = start
        for other in range(start - 1, -1, -1):
            verdict = compare(order[other], order[moving])
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif verdict < 0:
                break
    return order


def _tried_order(shape: Shape, strides: list[Shape]) -> list[int] | None:
    """The order, where it does not matter how those dimensions of size one are ordered of which it
    is not known; None where it does."""
    found: list[list[int]] = []
    pending: list[tuple[int, ...]] = [()]
    while pending and len(found) < _MOST_TRIES:
        given = pending.pop()
        answers = list(given)
        found.append(_sorted(len(shape), _answering(shape, strides, answers)))
        for place in range(len(given), len(answers)):
            pending += [(*answers[:place], other) for other in (0, 1)]
    is_one = not pending and len({_places(shape, order) for order in found}) == 1
    return found[0] if is_one else None


def _answering(shape: Shape, strides: list[Shape], answers: list[int]) -> _Compare:
    """A comparison of dimensions that takes what is not known of two of the size one from the
    answers, and adds -1 to them where there is none left."""
    taken = itertools.count()

    def compare(a: int, b: int) -> int:
        if not (_is_one(shape[a]) and _is_one(shape[b]) and _is_undecided(strides, a, b)):
            return _compare_dims(shape, strides, a, b)
        place = next(taken)
        if place == len(answers):
            answers.append(-1)
        return answers[place]

    return compare


def _places(shape: Shape, order: list[int]) -> tuple[object, ...]:
    """What strides depend on: the dimensions of other sizes than one in their order, and behind how
    many of them each of the others is."""
    longer = [dim for dim in order if not _is_one(shape[dim])]
    behind, ahead = {}, 0
    for dim in order:
        behind[dim] = ahead
        ahead += not _is_one(shape[dim])
    return tuple(longer), tuple(sorted(behind.items()))


def _is_one(size: object) -> bool:
    return type(size) is int and size == 1


def _is_undecided(strides: list[Shape], a: int, b: int) -> bool:
    """Whether what is known does not say which of two dimensions, of the size one, comes first."""
    for stride in strides:
        left, right = stride[a], stride[b]
        if (type(left) is int and left == 0) or (type(right) is int and right == 0):
            continue
        same = known_equality(left, right)
        if not same:
            return same is None or known_less(left, right) is None
    return False


def _broadcast_stride(shape: Shape, own_shape: Shape, stride: Shape) -> Shape:
    lead = len(shape) - len(own_shape)
    return (0,) * lead + tuple(
        0 if size == 1 and shape[lead + dim] != 1 else step
        for dim, (size, step) in enumerate(zip(own_shape, stride))
    )


def _compare_dims(shape: Shape, strides: list[Shape], a: int, b: int) -> int:
    for stride in strides:
        if stride[a] == 0 or stride[b] == 0:
            continue
        if stride[a] != stride[b]:
            return 1 if _is_greater(stride[a], stride[b]) else -1
        if _is_greater(shape[a], shape[b]):
            return 1
    return 0


def _is_greater(left: int, right: int) -> bool:
    """`left > right`; of sizes that no size at hand answers for, as if they were large: where one
    is zero or one, either order gives the same strides."""
    if (type(left) is not int or type(right) is not int) and is_computed(left, right):
        return bool(hint_of(left) > hint_of(right))
    return bool(left > right)
