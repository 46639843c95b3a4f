"""What runs a launch program where a trace measures its kernels.

A launch program asks at its beginning whether a profiler of PyTorch is at work. Where a trace
measures, the answer is always yes, and this runs in the program's place; a profiler that is really
at work gets the program as ever. Of calls without a trace nothing changes.

Kernels are timed from C to C, about a microsecond of which is the timing's own; calls of ATen
around the call.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch

from braze.compat.torch.profiler import PROFILER
from braze.kernel_times import KernelTimes
from braze.runtime.launch.kernel_library import KernelLibrary
from braze.runtime.launch.profiled_program import (
    OBSERVED,
    ProfiledKernel,
    ProfiledProgram,
)

# The globals of a program -> its `call`.
Define: TypeAlias = Callable[[dict[str, Any]], Any]


@final
class TimedProgram:
    """Runs a launch program, and adds what its parts took to the graph's times.

    profiled: what runs under a profiler. define: makes the program with other names, of the code
    that its text was compiled to. kernels: those that each segment runs, in order. operators: the
    names in the program that call ATen, and what each is shown as.
    """

    __slots__ = ("_call", "_define", "_kernels", "_operators", "_profiled", "_times")

    def __init__(
        self,
        times: KernelTimes,
        profiled: ProfiledProgram,
        define: Define,
        kernels: Sequence[Sequence[ProfiledKernel]],
        operators: Mapping[str, str],
    ) -> None:
        self._times, self._profiled, self._define = times, profiled, define
        self._kernels, self._operators = kernels, operators
        self._call: Any = None

    def names(self) -> dict[str, Any]:
        """What the program's own names become, so that this runs."""
        return {"profiler": _ALWAYS, "profiled": self}

    def __call__(self, inputs: Sequence[torch.Tensor], names: Mapping[str, object]) -> object:
        if PROFILER._is_profiler_enabled:
            return self._profiled(inputs, {k: v for k, v in names.items() if v is not self})
        call = self._call
        if call is None:
            call = self._call = self._made({k: v for k, v in names.items() if v is not self})
        began = time.perf_counter()
        results = call(inputs)
        self._times.add("", time.perf_counter() - began)
        return results

    def _made(self, names: dict[str, Any]) -> object:
        if library := names.get("keep"):
            names["run"] = _timed_run(names["run"], library, self._kernels, self._times)
        for name, shown in self._operators.items():
            names[name] = _timed_call(names[name], shown, self._times)
        names["profiler"] = _NEVER
        return self._define(names)


# --- private ---------------------------------------------------------------------------------


@final
class _Answer:
    """In the place of PyTorch's module: whether a profiler is at work."""

    __slots__ = ("_is_profiler_enabled",)

    def __init__(self, is_enabled: bool) -> None:
        self._is_profiler_enabled = is_enabled


_ALWAYS, _NEVER = _Answer(True), _Answer(False)


@final
class _TimedThread(threading.local):
    """What this thread runs: the kernels of each segment, where their times go, and when the one
    that runs began. Equal graphs share a library: a thread that is not timed has none."""

    def __init__(self) -> None:
        self.kernels: Sequence[Sequence[ProfiledKernel]] = ()
        self.times: KernelTimes | None = None
        self.began = 0.0


_RUNNING = _TimedThread()


def _timed_run(
    run: Callable[..., int],
    library: KernelLibrary,
    kernels: Sequence[Sequence[ProfiledKernel]],
    times: KernelTimes,
) -> Callable[..., int]:
    observer = ctypes.c_void_p.from_address(library.address(OBSERVED))

    def run_timed(entry: int, *arguments: object) -> int:
        _RUNNING.kernels, _RUNNING.times = kernels, times
        observer.value = _OBSERVER_ADDRESS
        try:
            return run(entry, *arguments)
        finally:
            observer.value = None
            _RUNNING.kernels, _RUNNING.times = (), None

    return run_timed


def _timed_call(
    call: Callable[..., object], shown: str, times: KernelTimes
) -> Callable[..., object]:
    def call_timed(*args: object, **kwargs: object) -> object:
        began = time.perf_counter()
        result = call(*args, **kwargs)
        times.add(shown, time.perf_counter() - began)
        return result

    return call_timed


def _observe(entry: int, kernel: int, begins: int) -> None:
    if begins:
        _RUNNING.began = time.perf_counter()
    elif _RUNNING.times is not None:
        spent = time.perf_counter() - _RUNNING.began
        _RUNNING.times.add(_RUNNING.kernels[entry][kernel].name, spent)


_OBSERVER = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_int, ctypes.c_int)(_observe)
_OBSERVER_ADDRESS = ctypes.cast(_OBSERVER, ctypes.c_void_p).value
