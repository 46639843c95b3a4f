"""What a profiler sees of a compiled graph: the graph as a region, and each kernel by its name.

A launch program asks at its beginning whether a profiler of PyTorch is at work, which is one look
at a module's attribute; where one is, `ProfiledProgram` runs in its place. A trace shows

    braze Block.forward (model.py:12), graph 3
        attention                              record_function("attention") in the program
            fused_add_layer_norm_0
            aten::addmm
        gelu_1

and what the program calls `record_function` around it. A kernel that computes parts of several
blocks of the program's is in those that all of it is in. On a device that holds of the kernels that
are launched together.
"""

from __future__ import annotations

import ctypes
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

from torch.autograd.profiler import record_function

from braze.frozen import frozen
from braze.ir.generated_code import define
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.schedule import Kernel, Schedule, Step, origins_of
from braze.ir.origin import origins_in, shared_labels
from braze.runtime.launch.kernel_library import KernelLibrary

# The first line of a launch program.
ASKS_PROFILER = "    if profiler._is_profiler_enabled: return profiled(inputs, globals())\n"

OBSERVED = "bz_observe"  # of entries.cpp
_COMMENT = "# labels"  # and a number: the program's labels that the following lines are in


@final
@frozen
class ProfiledKernel:
    """name: of a kernel. labels: the blocks of the program's that it is shown in."""

    name: str
    labels: tuple[str, ...]


@final
class LabelComments:
    """Writes into a launch program, as comments, where the program's labels begin and end. A
    comment costs a call nothing; what runs under a profiler has calls in their place."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {(): 0}
        self._now: tuple[str, ...] = ()

    @property
    def labels(self) -> tuple[tuple[str, ...], ...]:
        """Those of each number; empty where the program has none."""
        return tuple(self._numbers) if len(self._numbers) > 1 else ()

    def before(self, steps: Sequence[Step], are_observed: bool) -> list[str]:
        """The lines in front of steps that run together. are_observed: each kernel opens labels of
        its own, and the last one's stay open."""
        first = labels_of(steps[:1] if are_observed else steps)
        before, self._now = self._now, labels_of(steps[-1:]) if are_observed else first
        if first == before:
            return []
        return [f"{_COMMENT} {self._numbers.setdefault(first, len(self._numbers))}"]


def labels_of(steps: Iterable[Step]) -> tuple[str, ...]:
    """The labels of the program's that all of what the steps compute is in."""
    return shared_labels(
        [
            origin
            for step in steps
            for origin in (
                origins_of(step) if isinstance(step, Kernel) else origins_in(step.call.origin)
            )
        ]
    )


@final
class ProfiledProgram:
    """Runs a launch program as a region that bears the graph's title.

    text: of the program. kernels: those that each segment runs, in order. labels: the program's,
    by the numbers of the comments. What runs is made at the first call, and held here alone: the
    program's globals hold this.
    """

    __slots__ = ("_call", "_kernels", "_labels", "_text", "_title")

    def __init__(
        self,
        title: str,
        text: bytes,
        kernels: Sequence[Sequence[ProfiledKernel]],
        labels: Sequence[tuple[str, ...]] = (),
    ) -> None:
        self._title, self._text, self._kernels, self._labels = title, text, kernels, labels
        self._call: Any = None

    def __call__(self, inputs: object, names: Mapping[str, object]) -> object:
        call = self._call
        if call is None:
            with record_function(_PREPARES):  # a first profile would lay it to the program's code
                call = self._call = self._made({k: v for k, v in names.items() if v is not self})
        with record_function(self._title), _RUNNING.graph():
            return call(inputs)

    def _made(self, names: dict[str, Any]) -> object:
        if library := names.get("keep"):
            names["run"] = observed(names["run"], library, self._kernels)
        text = zlib.decompress(self._text).decode().replace(ASKS_PROFILER, "")
        if self._labels:
            names["labels_by_number"], names["show_labels"] = self._labels, _RUNNING.show
            text = _COMMENTS.sub(r"show_labels(labels_by_number[\1])", text)
        return define(FUNCTIONS.split(text)[1:], "<braze launch program>", names)


def profiled_kernels(
    schedule: Schedule, sources: KernelSources
) -> tuple[tuple[ProfiledKernel, ...], ...]:
    """The kernels that each segment runs, in order."""
    runs = [schedule.steps[s.first : s.last + 1] for s in sources.segments]
    return tuple(
        [
            tuple([ProfiledKernel(k.name, labels_of([k])) for k in run if isinstance(k, Kernel)])
            for run in runs
        ]
    )


def observed(
    run: Callable[..., int], library: KernelLibrary, kernels: Sequence[Sequence[ProfiledKernel]]
) -> Callable[..., int]:
    """`run`, with each kernel recorded as a region. kernels: of each segment."""
    observer = ctypes.c_void_p.from_address(library.address(OBSERVED))

    def run_observed(entry: int, *arguments: object) -> int:
        _RUNNING.kernels = kernels
        observer.value = _OBSERVER_ADDRESS
        try:
            return run(entry, *arguments)
        finally:
            observer.value = None
            _RUNNING.kernels = ()

    return run_observed


# --- private ---------------------------------------------------------------------------------


@final
class _Observed(threading.local):
    """What this thread runs: its kernels by segment, and the regions that are open: of kernels,
    and of the program's labels in the graph that runs.

    A library is shared by equal graphs, and by threads: one that is not profiled has no kernels.
    """

    def __init__(self) -> None:
        self.kernels: Sequence[Sequence[ProfiledKernel]] = ()
        self.regions: list[Any] = []
        self.labels: list[tuple[str, Any]] = []

    @contextmanager
    def graph(self) -> Iterator[None]:
        """A graph runs, which opens labels of its own, and has closed them at its end."""
        outer, self.labels = self.labels, []
        try:
            yield
        finally:
            self.show(())
            self.labels = outer

    def show(self, labels: tuple[str, ...]) -> None:
        """Close the open labels that are not among these, and open the others."""
        shared = 0
        for (name, _), wanted in zip(self.labels, labels):
            if name != wanted:
                break
            shared += 1
        while len(self.labels) > shared:
            self.labels.pop()[1].__exit__(None, None, None)
        for name in labels[shared:]:
            self.labels.append((name, _begun(name)))


_RUNNING = _Observed()
_PREPARES = "(Braze prepares a graph for the profiler)"
FUNCTIONS = re.compile(r"^(?=def )", re.MULTILINE)
_COMMENTS = re.compile(rf"{_COMMENT} (\d+)$", re.MULTILINE)


def _observe(entry: int, kernel: int, begins: int) -> None:
    if begins and _RUNNING.kernels:
        found = _RUNNING.kernels[entry][kernel]
        _RUNNING.show(found.labels)
        _RUNNING.regions.append(_begun(found.name))
    elif not begins and _RUNNING.regions:
        _RUNNING.regions.pop().__exit__(None, None, None)


def _begun(name: str) -> record_function:
    region = record_function(name)
    region.__enter__()
    return region


_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_int)(_observe)
_OBSERVER_ADDRESS = ctypes.cast(_OBSERVER, ctypes.c_void_p).value
