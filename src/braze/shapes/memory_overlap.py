"""Whether tensors have elements in common: of strided layouts, exactly.

    z[:4], z[4:]            no: their bytes are two ranges
    z[:, ::2], z[:, 1::2]   no: their ranges interleave, but no element is in both
    z[:6], z[4:]            yes

Two tensors meet where the bytes of two of their elements do: where

    start + sum(step * x)  -  other start - sum(other step * y)

lies within an element's width for some indices x and y. Reversed, y's steps count upwards too, and
the question is which sums of bounded multiples of steps reach an interval. The search goes from the
largest step down, and leaves out what the remaining steps cannot reach by their sum or by their
greatest common divisor: of layouts whose dimensions nest it takes a few steps. It is given up
after `EFFORT` of them, and the answer is yes. `guard_apart.cpp` does the same.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import NamedTuple, final

import torch

from braze.compat.torch.functorch import storage_behind

EFFORT = 1000


@final
class Access(enum.IntEnum):
    """What a graph does to the memory of an input: the groups of an overlap guard, in order."""

    WRITTEN = 0
    # Written so that autograd records it: a view's base gets the history, and so do its views.
    REBASED = 1
    READ = 2


@final
class Extent(NamedTuple):
    """The memory of a tensor, in bytes. space: 0, or what tells storages without addresses apart.
    start, end: its first byte, and the one behind its last; equal where it has no elements.
    dimensions: (size, step) of each."""

    space: int
    start: int
    end: int
    width: int
    dimensions: tuple[tuple[int, int], ...]


def extent_of(tensor: torch.Tensor) -> Extent:
    """The memory of a tensor's elements; all of the storage of a function transform's tensor."""
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:
        return storage_extent(tensor)
    address = storage.data_ptr()
    width = tensor.element_size()
    start = address + int(tensor.storage_offset()) * width
    space = 0 if address else int(storage._cdata)
    if not tensor.numel():
        return Extent(space, start, start, width, ())
    dimensions, last = [], 0
    for size, stride in zip(tensor.shape, tensor.stride()):
        dimensions.append((size, stride * width))
        last += (size - 1) * stride * width
    return Extent(space, start, start + last + width, width, tuple(dimensions))


def storage_extent(tensor: torch.Tensor) -> Extent:
    """The memory of all of a tensor's storage."""
    storage = storage_behind(tensor)
    address, size = storage.data_ptr(), storage.nbytes()
    space = 0 if address else int(storage._cdata)
    return Extent(space, address, address + size, 1, ((size, 1),))


def extents_meet(one: Extent, other: Extent) -> bool:
    """Whether two tensors have a byte in common; yes, too, where that takes too long to tell."""
    if one.space != other.space or one.start >= other.end or other.start >= one.end:
        return False
    if one.start == one.end or other.start == other.end:
        return False
    counts: dict[int, int] = {}
    for size, step in (*one.dimensions, *other.dimensions):
        if step and size > 1:
            counts[step] = counts.get(step, 0) + size - 1
    reach = other.end - other.width - one.start
    steps = sorted(counts.items(), reverse=True)
    return _reaches(steps, 0, reach - one.width + 1, reach + other.width - 1, [EFFORT])


def first_meeting(groups: Sequence[Sequence[torch.Tensor]]) -> tuple[int, int] | None:
    """Two tensors that meet, one of which is written to, by their numbers in all groups; None where
    there are none. groups: the tensors of each role."""
    found = [
        (storage_extent(tensor) if role is Access.REBASED else extent_of(tensor), role, number)
        for number, (tensor, role) in enumerate(
            (tensor, role) for role, group in zip(Access, groups, strict=True) for tensor in group
        )
    ]
    found = sorted([each for each in found if each[0].start < each[0].end], key=_place)
    begun: list[tuple[Extent, Access, int]] = []
    for extent, role, number in found:
        begun = [each for each in begun if each[0][:1] == extent[:1] and each[0].end > extent.start]
        for other, its_role, its_number in begun:
            if role is its_role is Access.READ:
                continue
            if extents_meet(other, extent):
                return min(number, its_number), max(number, its_number)
        begun.append((extent, role, number))
    return None


# --- private ---------------------------------------------------------------------------------


def _place(found: tuple[Extent, Access, int]) -> tuple[int, int]:
    return found[0][:2]


def _reaches(
    steps: Sequence[tuple[int, int]], first: int, low: int, high: int, effort: list[int]
) -> bool:
    """Whether a sum of the steps from `first` on, each at most as often as it is there, lies in
    [low, high]."""
    if high < 0:
        return False
    if low <= 0:
        return True
    rest = steps[first:]
    if sum([step * count for step, count in rest]) < low:
        return False
    divisor = math.gcd(*[step for step, _ in rest])
    if -(-low // divisor) * divisor > high:
        return False
    effort[0] -= 1
    if effort[0] < 0:
        return True
    step, count = rest[0]
    others = sum([step * count for step, count in rest[1:]])
    least = max(0, -(-(low - others) // step))
    return any(
        _reaches(steps, first + 1, low - step * times, high - step * times, effort)
        for times in range(least, min(count, high // step) + 1)
    )
