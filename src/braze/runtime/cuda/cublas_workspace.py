"""The scratch memory that matrix products of recordings work in.

cuBLAS works in a piece of memory (32 MiB on Hopper) that PyTorch keeps for each thread and stream,
for good. Recordings are made on a stream of their own, so they would hold such pieces beside the
default stream's, one for each thread that records. They share one here: replays of a device are one
behind the other, and what is in it means nothing between two products.

    in memory of its own    whoever has PyTorch drop its pieces (torch.compile does, before it
                            records) does not take it from the recordings
    made before each one    a recording never works in what lies in another's memory, and goes with
                            that
    as much as is needed    cuBLASLt, which adds a vector to each row of a product, works in a
                            piece of its own (1 MiB), which a model without biases never has
    all others are dropped  a product that runs outside of recordings makes its piece anew
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.cuda import drop_product_workspaces

Products: TypeAlias = Callable[[list[Any]], list[torch.Tensor]]
# (call, its inputs, handle of the memory) -> the CUDA graph of the call, which keeps the memory
Capture: TypeAlias = Callable[[Products, list[Any], tuple[int, int]], torch.cuda.CUDAGraph]


class Scratch(enum.Flag):
    """Whose memory products of matrices work in. BIASED: of those with a vector for all rows."""

    NONE = 0
    PLAIN = enum.auto()
    BIASED = enum.auto()


@final
class LoadedLibraries:
    """The devices on which this process has run a product of the library's. The first one of a
    process loads the library, some tenths of a second: nothing but a program's own need of products
    is worth that."""

    def __init__(self) -> None:
        self._devices: set[torch.device] = set()

    def note(self, device: torch.device) -> None:
        """Say that a product runs there."""
        self._devices.add(device)

    def __contains__(self, device: torch.device) -> bool:
        return device in self._devices


PRODUCTS_LOADED = LoadedLibraries()


@final
class LibraryWorkspace:
    """That of a device's recordings."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._used = Scratch.PLAIN
        self._handle: tuple[int, int] | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def prepare(self, used: Scratch, capture: Capture, give_back: Callable[[], None]) -> None:
        """Have what this thread records next work in it. used: by the products of that; what
        others used stays. give_back: is called before memory is taken, and when PyTorch's pieces
        are idle. Raises what `capture` does."""
        self._used |= used
        products = functools.partial(_products, self._used)
        if self._handle is None:
            self._handle = torch.cuda.graph_pool_handle()
        give_back()
        squares = [torch.zeros(16, 16, device=self._device) for _ in range(2)]
        products(squares)  # what the library sets up for them must not be captured
        drop_product_workspaces()
        give_back()
        # The new graph before the old one goes: the memory is given back with the last.
        self._graph = capture(products, squares, self._handle)


def make_workspace(used: Scratch, device: torch.device) -> None:
    """Have PyTorch make what products of this thread and stream work in, where it has none: else it
    does so in the middle of a call, at a place that is free for the moment, and stays there."""
    _products(used, [torch.zeros(16, 16, device=device) for _ in range(2)])


def _products(used: Scratch, given: list[Any]) -> list[torch.Tensor]:
    """Of those kinds. What they give is there before: it takes nothing of a recording's memory."""
    square, result = given
    PRODUCTS_LOADED.note(square.device)
    if Scratch.PLAIN in used:
        torch.mm(square, square, out=result)
    if Scratch.BIASED in used:
        torch.addmm(square[0], square, square, out=result)
    return [result]
