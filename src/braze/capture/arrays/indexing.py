"""Items and slices of arrays: `a[1:, None]`, `a[::-1]`, `a[rows, columns]`, `a[mask] = 0`."""

from __future__ import annotations

import operator
from typing import Any

import torch

from braze.capture.arrays.fake_array import FakeArray, refusal
from braze.capture.arrays.values import Arrays, computes
from braze.compat.numpy.interface import SCALARS, numpy


@computes("__getitem__")
def get(
    arrays: Arrays, found: object, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    owner, key = args
    if type(owner) is not FakeArray:
        raise refusal("an item of a sequence, at an array's place")
    tensor = arrays.tensor(owner)
    parts = _parts(key)
    if any(type(p) is FakeArray and p.like.dtype == bool for p in parts):
        raise refusal("the elements where a mask is true")
    places, reversed_dims = _translated(arrays, owner.like, parts)
    value = arrays.leaf(operator.getitem, tensor, tuple(places))
    return arrays.leaf(torch.flip, value, reversed_dims) if reversed_dims else value


@computes("__setitem__")
def store(arrays: Arrays, found: object, args: tuple[Any, ...], kwargs: dict[str, object]) -> None:
    owner, key, value = args
    target = arrays.written(owner)
    parts = _parts(key)
    places, reversed_dims = _translated(arrays, owner.like, parts)
    if type(value) in (list, tuple):
        value = arrays.constant(numpy.array(value))
    if type(value) is FakeArray:
        value = arrays.leaf(torch.Tensor.to, arrays.tensor(value), target.dtype)
        # Dimensions of one element in front are dropped, as in NumPy.
        slot = owner.like[mapped_key(parts)] if owner.like.size else owner.like
        while value.dim() > numpy.ndim(slot):
            value = arrays.leaf(operator.getitem, value, 0)
    else:
        value = owner.like.dtype.type(value).item()
        if target.dtype is torch.bool:
            value = bool(value)
    if reversed_dims:
        raise refusal("writing to a reversed view")
    arrays.leaf(operator.setitem, target, tuple(places), value)


def mapped_key(parts: list[object]) -> tuple[object, ...]:
    """The key of the array that is like the owner."""
    return tuple([part.like if type(part) is FakeArray else part for part in parts])


def _parts(key: object) -> list[Any]:
    return list(key) if type(key) is tuple else [key]


def _translated(arrays: Arrays, like: Any, parts: list[Any]) -> tuple[list[object], list[int]]:
    """The key as PyTorch takes it, and which dimensions of the result are turned around."""
    parts = [arrays.constant(_places(p)) if type(p) is list else p for p in parts]
    parts = [int(p) if type(p) in SCALARS and p.dtype.kind in "iu" else p for p in parts]
    taken = [p for p in parts if p is not None and p is not Ellipsis]
    used = sum(p.like.ndim if _is_mask(p) else 1 for p in taken)
    advanced = any(type(p) is FakeArray for p in parts)
    if advanced and not _are_together([type(p) in (int, FakeArray) for p in parts]):
        raise refusal("integers and arrays in one index, with slices between them")
    if any(type(p) in (bool, numpy.bool_, tuple) for p in parts):
        raise refusal("a truth for an index")
    places: list[Any] = []
    turned: list[int] = []
    dim = at = 0
    for part in parts:
        if part is Ellipsis:
            dim += like.ndim - used
            at += like.ndim - used
            places.append(part)
        elif part is None:
            at += 1
            places.append(part)
        elif type(part) is slice:
            start, stop, step = part.indices(like.shape[dim])
            if step < 0:
                if advanced:
                    raise refusal("a reversed slice beside an array")
                count = len(range(start, stop, step))
                turned.append(at)
                last = start + (count - 1) * step
                part = slice(last, start + 1, -step) if count else slice(0, 0)
            places.append(part)
            dim, at = dim + 1, at + 1
        elif type(part) is int:
            places.append(part)
            dim += 1
        elif type(part) is FakeArray:
            if not _is_mask(part) and part.like.dtype.kind not in "iu":
                raise refusal(f"an index of {part.like.dtype}")
            if not part.like.ndim:
                raise refusal("an index of no dimension")
            places.append(arrays.tensor(part) if _is_mask(part) else _long(arrays, part))
            dim += part.like.ndim if _is_mask(part) else 1
        else:
            raise refusal(f"an index of {type(part).__qualname__}")
    return places, turned


def _are_together(flags: list[bool]) -> bool:
    """Whether no false one lies between true ones."""
    first, last = flags.index(True), len(flags) - flags[::-1].index(True)
    return all(flags[first:last])


def _is_mask(part: object) -> bool:
    return type(part) is FakeArray and part.like.dtype == bool


def _long(arrays: Arrays, part: FakeArray) -> object:
    return arrays.leaf(torch.Tensor.to, arrays.tensor(part), torch.int64)


def _places(part: list[object]) -> object:
    if any(type(item) is FakeArray for item in part):
        raise refusal("a list of arrays for an index")
    found = numpy.array(part)
    return found.astype(numpy.int64) if not found.size else found
