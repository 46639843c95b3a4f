"""What a profiler sees of a compiled graph: the graph as a region, and each kernel by its name.

A launch program asks at its beginning whether a profiler of PyTorch is at work, which is one look
at a module's attribute; where one is, `ProfiledProgram` runs in its place. A trace shows

    braze Block.forward (model.py:12), graph 3
        fused_add_layer_norm_0
        aten::addmm
        gelu_1

and what the program calls `record_function` around it.
"""

from __future__ import annotations

import ctypes
import re
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from torch.autograd.profiler import record_function

from braze.ir.generated_code import define
from braze.ir.kernels.kernel import KernelSources
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.runtime.launch.kernel_library import KernelLibrary

# The first line of a launch program.
ASKS_PROFILER = "    if profiler._is_profiler_enabled: return profiled(inputs, globals())\n"

_OBSERVED = "bz_observe"  # of entries.cpp


@final
class ProfiledProgram:
    """Runs a launch program as a region that bears the graph's title.

    text: of the program without the question after a profiler. kernels: the names of those that
    each segment runs, in order. What runs is made at the first call, and held here alone: the
    program's globals hold this.
    """

    __slots__ = ("_call", "_kernels", "_text", "_title")

    def __init__(self, title: str, text: bytes, kernels: Sequence[Sequence[str]]) -> None:
        self._title, self._text, self._kernels = title, text, kernels
        self._call: Any = None

    def __call__(self, inputs: Any, names: Mapping[str, Any]) -> Any:
        call = self._call
        if call is None:
            call = self._call = self._made({k: v for k, v in names.items() if v is not self})
        with record_function(self._title):
            return call(inputs)

    def _made(self, names: dict[str, Any]) -> Any:
        if library := names.get("keep"):
            names["run"] = observed(names["run"], library, self._kernels)
        text = zlib.decompress(self._text).decode().replace(ASKS_PROFILER, "")
        return define(_FUNCTIONS.split(text)[1:], "<braze launch program>", names)


def kernel_names(schedule: Schedule, sources: KernelSources) -> tuple[tuple[str, ...], ...]:
    """The names of the kernels that each segment runs, in order."""
    runs = [schedule.steps[s.first : s.last + 1] for s in sources.segments]
    return tuple([tuple([k.name for k in run if isinstance(k, Kernel)]) for run in runs])


def observed(
    run: Callable[..., int], library: KernelLibrary, names: Sequence[Sequence[str]]
) -> Callable[..., int]:
    """`run`, with each kernel recorded as a region. names: of each segment's kernels."""
    observer = ctypes.c_void_p.from_address(library.address(_OBSERVED))

    def run_observed(entry: int, *arguments: Any) -> int:
        _RUNNING.names = names
        observer.value = _OBSERVER_ADDRESS
        try:
            return run(entry, *arguments)
        finally:
            observer.value = None
            _RUNNING.names = ()

    return run_observed


# --- private ---------------------------------------------------------------------------------


@final
class _Observed(threading.local):
    """What this thread runs: the names of kernels by segment, and the regions that are open.

    A library is shared by equal graphs, and by threads: one that is not profiled has no names.
    """

    def __init__(self) -> None:
        self.names: Sequence[Sequence[str]] = ()
        self.regions: list[Any] = []


_RUNNING = _Observed()
_FUNCTIONS = re.compile(r"^(?=def )", re.MULTILINE)


def _observe(entry: int, kernel: int, begins: int) -> None:
    if begins and _RUNNING.names:
        region = record_function(_RUNNING.names[entry][kernel])
        region.__enter__()
        _RUNNING.regions.append(region)
    elif not begins and _RUNNING.regions:
        _RUNNING.regions.pop().__exit__(None, None, None)


_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_int)(_observe)
_OBSERVER_ADDRESS = ctypes.cast(_OBSERVER, ctypes.c_void_p).value
