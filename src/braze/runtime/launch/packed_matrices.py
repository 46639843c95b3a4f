"""Weights in the panels that kernels of products multiply, kept from call to call.

    first call with some weights     nothing: kernels pack them
    second                           packed here, and kept
    later, while they stay           what is kept
    changed                          as the first call

Whether they stay is told by `storage_watch.py`, for all weights of a graph at once. Where that does
not tell (something else holds the memory, or counts no versions), nothing is kept: to compare
weights costs what packing does. Those that change from call to call are left out for a while.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from braze.errors import BrazeError
from braze.ir.kernels.kernel import SourceUnit
from braze.ir.kernels.schedule import PANEL
from braze.locks import make_lock
from braze.options import Options
from braze.runtime.launch.build_cache import library_of
from braze.runtime.launch.cpp_compiler import NoCompiler, find_for_kernels
from braze.runtime.launch.packed_weights import PACKED
from braze.runtime.launch.storage_watch import WATCH, States, WatchedStorage

_HINTS = logging.getLogger("braze.perf_hints")
_OF_NOTHING = {"origin": "", "artefact": "perf_hints"}  # in the program
_NUMBERS = 6  # that say where a matrix is: see `pack_weights`
_MOST_MISSES = 4  # weights that changed so often, one call after the other, are left out
_PAUSE = 256  # calls


@final
@dataclass(frozen=True, slots=True)
class _SeenWeight:
    """What the last call that looked at a weight found. panels: None where they are not kept."""

    states: States
    watched: tuple[WatchedStorage, ...]
    panels: torch.Tensor | None = None


@final
@dataclass(slots=True)
class _Matrix:
    """A matrix in a weight. place: its offset, rows, columns and steps. seen: is set as a whole,
    since another thread may let go of it. misses: how often the weight was not the same as in the
    call before, or could not be kept, since it was packed."""

    weight: int
    place: tuple[int, ...]
    seen: _SeenWeight | None = None
    misses: int = 0

    @property
    def is_left_out(self) -> bool:
        """Whether it changes too often."""
        return self.misses >= _MOST_MISSES

    @property
    def panels(self) -> torch.Tensor | None:
        """What is kept."""
        seen = self.seen
        return None if seen is None else seen.panels


@final
@dataclass(frozen=True, slots=True)
class _KeptPanels:
    """What calls are given while the weights of these numbers have these states, which stay watched
    meanwhile. weights: how many there are."""

    numbers: tuple[int, ...]
    states: States
    watched: tuple[WatchedStorage, ...]
    panels: list[torch.Tensor]
    weights: int

    def fits(self, weights: Sequence[torch.Tensor]) -> bool:
        """Whether the weights are those that were packed."""
        if len(self.numbers) == self.weights:
            return bool(WATCH.states(tuple(weights)) == self.states)
        return bool(WATCH.states(tuple([weights[n] for n in self.numbers])) == self.states)


@final
class PackedMatrices:
    """A call of `braze::pack_weights`. Calls may come from several threads."""

    __slots__ = (
        "__weakref__",
        "_empty",
        "_kept",
        "_limit",
        "_lock",
        "_matrices",
        "_options",
        "_pause",
        "_unit",
    )

    def __init__(self, options: Options, unit: SourceUnit) -> None:
        """unit: source that packs as the kernels do."""
        self._options, self._unit = options, unit
        self._limit = options.packed_weights << 20
        self._lock = make_lock()
        self._empty = torch.empty(0, dtype=torch.float32, device="cpu")
        self._matrices: list[_Matrix] = []
        self._kept: _KeptPanels | None = None
        self._pause = 0  # calls until those that are left out are looked at again
        WATCH.is_ready(options)  # builds what it needs now, not in a call

    def __call__(
        self, weights: Sequence[torch.Tensor], places: Sequence[int]
    ) -> list[torch.Tensor]:
        """The panels of each matrix, empty of those that are not packed."""
        kept = self._kept
        if self._pause:
            self._pause -= 1
            if not self._pause:
                kept = None
        try:
            if kept is not None and kept.fits(weights):
                return kept.panels
        except RuntimeError:  # these are of inference mode, and count no versions
            pass
        with self._lock:
            return self._renewed(weights, places)

    def held_bytes(self) -> int:
        """Bytes that are kept."""
        return sum(
            [panels.nbytes for matrix in self._matrices if (panels := matrix.panels) is not None]
        )

    def drop_expired(self) -> None:
        """Let go of what was made of weights that are gone. Takes no lock: a thread that has this
        one's may wait for the caller's."""
        for matrix in self._matrices:
            seen = matrix.seen
            if seen is not None and any(each.is_expired() for each in seen.watched):
                matrix.seen = self._kept = None

    # --- private -----------------------------------------------------------------------------

    def _renewed(
        self, weights: Sequence[torch.Tensor], places: Sequence[int]
    ) -> list[torch.Tensor]:
        """What is kept from here on: of each weight that is the same as in the call before."""
        if not self._matrices:
            self._matrices = [_Matrix(row[0], row[1:]) for row in places_of(places)]
        self._kept = None
        if not WATCH.is_ready(self._options):
            return [self._empty for _ in self._matrices]
        for matrix in self._matrices:
            if matrix.is_left_out and not self._pause:
                matrix.misses = 0
            if not matrix.is_left_out:
                self._look_at(matrix, weights[matrix.weight])
        if not self._pause and any(matrix.is_left_out for matrix in self._matrices):
            self._pause = _PAUSE
        found = [(matrix, matrix.seen) for matrix in self._matrices if not matrix.is_left_out]
        of_weight = {matrix.weight: seen for matrix, seen in found if seen is not None}
        panels_of = {id(matrix): seen.panels for matrix, seen in found if seen is not None}
        panels = [panels_of.get(id(matrix)) for matrix in self._matrices]
        given = [self._empty if each is None else each for each in panels]
        # Two matrices of one weight must have been packed in the same state of it.
        if all(
            seen is not None
            and seen.panels is not None
            and seen.states == of_weight[matrix.weight].states
            for matrix, seen in found
        ):
            states = tuple([part for seen in of_weight.values() for part in seen.states])
            watched = tuple([each for seen in of_weight.values() for each in seen.watched])
            self._kept = _KeptPanels(tuple(of_weight), states, watched, given, len(weights))
        return given

    def _look_at(self, matrix: _Matrix, weight: torch.Tensor) -> None:
        """Pack a matrix, or let go of it, as its weight has become."""
        seen = matrix.seen
        if weight.is_inference():
            matrix.misses = _MOST_MISSES
        elif seen is None or WATCH.states((weight,)) != seen.states:
            matrix.misses += seen is not None
            watched = WATCH.watch((weight,))
            matrix.seen = _SeenWeight(WATCH.states((weight,)), watched)
        elif seen.panels is None:
            matrix.misses += 1
            address: Any = seen.states[1]  # `data_ptr()` would count as an access
            panels = self._packed(matrix.place, address) if WATCH.is_sole_owner(weight) else None
            # It may have been written to by another thread meanwhile.
            if panels is not None and WATCH.states((weight,)) == seen.states:
                matrix.seen, matrix.misses = _SeenWeight(seen.states, seen.watched, panels), 0
        if matrix.is_left_out:
            matrix.seen = None

    def _packed(self, place: tuple[int, ...], address: int) -> torch.Tensor | None:
        """The panels of a matrix in the weight at an address; None where there is no room."""
        if not PACKED.admits(self, self.held_bytes() + 4 * _size(place), self._limit):
            return None
        return packed_panels(place, address, self._options, self._unit)


def packed_panels(
    place: tuple[int, ...], address: int, options: Options, unit: SourceUnit
) -> torch.Tensor | None:
    """The panels of a matrix in the weight at an address; None where they cannot be made, so that
    the kernels pack at each call. place: as in `pack_weights`, but for the weight's number."""
    offset, rows, columns, down, across = place
    toolchain = find_for_kernels(options)
    if isinstance(toolchain, NoCompiler):
        return None
    try:
        library = library_of((unit,), toolchain, options)
    except BrazeError as error:
        _HINTS.info("weights of products are packed at each call: %s", error, extra=_OF_NOTHING)
        return None
    made = torch.empty(_size(place), dtype=torch.float32, device="cpu")
    numbers = (ctypes.c_int64 * 4)(rows, columns, down, across)
    start = ctypes.c_void_p(address + 4 * offset)
    library.bz_pack_whole(numbers, start, ctypes.c_void_p(made.data_ptr()))
    return made


def places_of(places: Sequence[int]) -> list[tuple[int, ...]]:
    """The numbers of each matrix: of its weight, and its place there."""
    return [tuple(places[n : n + _NUMBERS]) for n in range(0, len(places), _NUMBERS)]


def _size(place: tuple[int, ...]) -> int:
    _, rows, columns, *_ = place
    return rows * -(-columns // PANEL) * PANEL
