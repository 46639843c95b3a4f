"""What a launch program calls: kernels of a shared object, memory, and small functions."""

from __future__ import annotations

import array
import ctypes
import os
import subprocess
import tempfile
from typing import Any

import torch


def built(command: list[str], sources: list[str], libraries: list[str]) -> ctypes.CDLL:
    """The kernels beside the script, compiled."""
    here = os.path.dirname(os.path.abspath(__file__))
    with tempfile.TemporaryDirectory() as folder:
        target = os.path.join(folder, "kernels.so")
        paths = [os.path.join(here, name) for name in sources]
        subprocess.run([*command, *paths, "-o", target, *libraries], check=True)
        return ctypes.CDLL(target)


_ENTRY = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int
)


def entry_of(library: ctypes.CDLL, name: str) -> int:
    """The address of an entry: data, which begins with the function that reads it."""
    return ctypes.addressof(ctypes.c_char.in_dll(library, name))


def run(entry: int, table: Storage, sizes: Any, threads: int, *bound: Any) -> int:
    """Start the kernels of an entry; bound: places in the table, and the tensors there."""
    for place, tensor in zip(bound[::2], bound[1::2]):
        table.table[place] = tensor.data_ptr()
    start = _ENTRY(ctypes.c_size_t.from_address(entry).value)
    places = [each.buffer_info()[0] for each in (table.table, sizes)]
    return int(start(entry, *places, threads))


def raise_fault(code: int) -> None:
    """What a kernel that stops says."""
    raise IndexError("an index is out of range") if code & 1 else ZeroDivisionError()


def raise_unmet(message: str, raises: bool = False) -> None:
    """What has to hold of numbers that the program computed, does not."""
    raise RuntimeError(message)


def flatten(result: object) -> list[object]:
    """What a call returned, in order, but for whole numbers."""
    if isinstance(result, (list, tuple)):
        return [tensor for part in result for tensor in flatten(part)]
    return [] if isinstance(result, int) else [result]


def restride(tensor: torch.Tensor, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """What a kernel of ATen returned, with the strides that were expected of it."""
    return torch.empty_strided(tensor.shape, stride, dtype=dtype, device=tensor.device).copy_(
        tensor
    )


def reinterpret(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The memory of a tensor as elements of another dtype."""
    if tensor.is_complex() and dtype.itemsize * 2 == tensor.dtype.itemsize:
        return torch.view_as_real(tensor).view(dtype)
    return (tensor if tensor.dim() else tensor.view(1)).view(dtype)


def after_effects(fault: BaseException, *pending: object) -> BaseException:
    """What fails once something is written."""
    return fault


def nothing(*arguments: object) -> None:
    """What only a program inside Braze has to tell."""


class Storage:
    """The memory of a call: an arena, the table of pointers, and sizes."""

    def __init__(self, size: int, offsets: list[Any], constants: list[Any], sizes: int) -> None:
        self.arena = torch.empty(size + 64, dtype=torch.uint8, device="cpu")
        self.start = -self.arena.data_ptr() % 64
        self.table = array.array("Q", [0] * (len(offsets) + 1))
        for place, (offset, constant) in enumerate(zip(offsets, constants)):
            if offset is not None:
                self.table[place] = self.arena.data_ptr() + self.start + offset
            elif constant is not None:
                self.table[place] = constant.data_ptr()
        self.sizes = array.array("q", [0] * sizes)

    def view(self, start: int, shape: Any, stride: Any, offset: int, dtype: Any) -> torch.Tensor:
        """A tensor in the arena."""
        first = self.start + start
        last = self.arena.numel() - (self.arena.numel() - first) % dtype.itemsize
        flat = self.arena[first:last].view(dtype)
        return flat.as_strided(shape, stride, flat.storage_offset() + offset)


class Sized:
    """An arena that is laid out for the numbers of a call."""

    numbers: Any = None

    def __init__(self, frame: Storage, offsets: Any, places: Any, views: Any, shapes: Any) -> None:
        self.frame, self.offsets, self.places = frame, offsets, places
        self.kinds, self.shapes = views, shapes
        self.views: list[torch.Tensor] = []

    def lay_out(self, numbers: Any) -> None:
        """The slots and views for these numbers."""
        offsets, size = self.offsets(numbers)
        frame = self.frame
        frame.arena = torch.empty(size + 128, dtype=torch.uint8, device="cpu")
        frame.start = -frame.arena.data_ptr() % 64
        for place, offset in zip(self.places, offsets):
            if place is not None:
                frame.table[place] = frame.arena.data_ptr() + frame.start + offset
        self.views = [
            frame.view(offsets[slot], shape, stride, offset, dtype)
            for (slot, dtype), (shape, stride, offset) in zip(self.kinds, self.shapes(numbers))
        ]
        self.numbers = numbers


class profiler:
    """No profile is taken."""

    _is_profiler_enabled = False
