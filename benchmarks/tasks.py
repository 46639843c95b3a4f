"""The tasks that a worker process does: `start`, `steady` and `overhead`.

A system that raises is an answer too: its part of the result is `{"error": ...}`, and the
traceback goes to stderr. Only a task that cannot begin at all ends the process.
"""

from __future__ import annotations

import importlib
import re
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, final

import torch

from benchmarks.accuracy import (
    Accuracy,
    compare,
    draws_random_numbers,
    float64_outputs,
    nearby_outputs,
)
from benchmarks.clocks import measure, peak_device_memory_mib, peak_memory_mib
from benchmarks.models import Case, Size, build, find, tensors_in
from benchmarks.offline import import_library
from benchmarks.request import DTYPES, GRAD_MODES, Request
from benchmarks.systems import BRAZE, EAGER, SYSTEMS
from benchmarks.timing import interleave, warm_up
from benchmarks.work import WORKS, Work

Result = dict[str, Any]
Answer = Callable[[dict[str, Any]], None]

# Results are compared on other values than those compiled with.
_COMPARED_SEED = 1


def import_libraries(text: str) -> None:
    """What the request's task needs besides torch: the model's library, and Braze where it is
    the only system. (Where it is one of several, its import is a part of its own attempt, so
    that a Braze that cannot be imported does not hide the others.)"""
    request = Request.from_json(text)
    if request.model is not None:
        spec = find(request.model)
        getattr(import_library(spec.library), spec.symbol)
    if request.systems == (BRAZE,):
        importlib.import_module("braze")


def perform(text: str, answer: Answer) -> Result:
    """Do the request's task. Threads are pinned for the whole process."""
    request = Request.from_json(text)
    torch.set_num_threads(request.settings.threads or torch.get_num_threads())
    worker = _Worker(request, answer)
    with GRAD_MODES[worker.work.grad_mode or request.settings.grad_mode]():
        return _TASKS[request.task](worker)


def describe_failure(error: BaseException) -> str:
    """Class and first line of an error, with the folders of paths cut off."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}".rstrip(": ")
    return re.sub(r"(?<![\w/])/(?:[\w.+-]+/)+", "", text)[:300]


@final
@dataclass(frozen=True, slots=True)
class _Worker:
    request: Request
    answer: Answer

    @property
    def device(self) -> str:
        return self.request.settings.device

    @property
    def work(self) -> Work:
        return WORKS[self.request.settings.work]

    def say(self, phase: str) -> None:
        self.answer({"event": "phase", "name": phase})

    def build(self) -> Case:
        assert self.request.model is not None
        size = Size(self.request.settings.size)
        return build(find(self.request.model), DTYPES[self.request.dtype], self.device, size)

    def attempt(self, system: str, phase: str, work: Callable[[], Result]) -> Result:
        """The work's figures, or the error that it ended with."""
        self.say(f"{SYSTEMS[system].title} {phase}".strip())
        try:
            return work()
        except Exception as error:
            traceback.print_exc()
            return {"error": describe_failure(error)}

    def compile(self, system: str, function: Any) -> Callable[..., Any]:
        mode = self.request.settings.mode_of(system)
        return SYSTEMS[system].compile(function, mode)

    def compile_and_call(
        self, system: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        compiled = self.compile(system, function)
        return compiled, compiled(*args, **kwargs)

    def make_and_call(self, system: str, case: Case) -> Callable[..., Any]:
        """What the work calls, compiled by the system and called once."""
        args, kwargs = case.arguments(0)
        call = self.work.make(self.work.case_for(case), partial(self.compile, system))
        call(*args, **kwargs)
        return call


# --- start: compile one model with one system --------------------------------------------------


def _start(worker: _Worker) -> Result:
    """From the call of `compile` to the end of the last call that compiles (the first; of training
    steps the second). Whether this is a cold compile or a warm start is decided by the cache
    folders in the environment."""
    (system,) = worker.request.systems
    result: Result = {}
    base = peak_memory_mib()
    if worker.request.first_compile:
        result |= worker.attempt(
            system, "first compile of a process", partial(_start_trivial, worker, system)
        )
    if worker.request.model is not None and "error" not in result:
        result |= worker.attempt(system, "compiling", partial(_start_model, worker, system))
    memory = {
        "peak_memory_mib": peak_memory_mib(),
        "peak_above_base_mib": peak_memory_mib() - base,
        "peak_device_memory_mib": peak_device_memory_mib(worker.device),
    }
    return {**result, **memory}


def _trivial(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def _start_trivial(worker: _Worker, system: str) -> Result:
    x = torch.ones(8, device=worker.device)
    work = partial(worker.compile_and_call, system, _trivial, (x,), {})
    _, elapsed = measure(work, worker.device)
    return {"first_compile": asdict(elapsed)}


def _start_model(worker: _Worker, system: str) -> Result:
    case = worker.build()

    def compile_all() -> Callable[..., Any]:
        call = worker.make_and_call(system, case)
        for _ in range(1, worker.work.compiling_calls):
            args, kwargs = case.arguments(0)
            call(*args, **kwargs)
        return call

    compiled, elapsed = measure(compile_all, worker.device)
    call = warm_up(compiled, partial(case.arguments, 0), worker.device)
    return {"compile": asdict(elapsed), "call_ms": call * 1e3}


# --- steady: one model under every system ------------------------------------------------------


def _steady(worker: _Worker) -> Result:
    """Times a call, interleaved; graphs and breaks; errors against eager and float64."""
    case = worker.build()
    results: dict[str, Result] = {}
    compiled: dict[str, Callable[..., Any]] = {}
    outputs: dict[str, list[torch.Tensor]] = {}
    for name in worker.request.systems:
        work = partial(_prepare, worker, name, case, compiled, outputs)
        results[name] = worker.attempt(name, "preparing", work)
    worker.say("timing")
    running = {name: f for name, f in compiled.items() if "error" not in results[name]}
    for name in running:
        SYSTEMS[name].settle()
    arguments = partial(case.arguments, 0)
    times = interleave(running, arguments, worker.device, worker.request.settings.rounds)
    for name, seconds in times.items():
        results[name]["call_ms"] = [second * 1e3 for second in seconds]
    if EAGER in outputs:
        worker.say("comparing with float64")
        for name, found in _judge(worker.work, case, outputs).items():
            results[name]["accuracy"] = asdict(found)
    return {"systems": results}


def _judge(work: Work, case: Case, outputs: dict[str, list[torch.Tensor]]) -> dict[str, Accuracy]:
    """How far each system is from eager and from float64; without those that draw random numbers
    of their own, where eager draws some."""
    reference = float64_outputs(case, _COMPARED_SEED, work)
    nearby = nearby_outputs(case, _COMPARED_SEED, work) if work.amplifies else []
    is_random = draws_random_numbers(case, work)
    return {
        name: compare(output, outputs[EAGER], reference, nearby)
        for name, output in outputs.items()
        if not (is_random and SYSTEMS[name].draws_itself)
    }


def _prepare(
    worker: _Worker,
    system: str,
    case: Case,
    compiled: dict[str, Callable[..., Any]],
    outputs: dict[str, list[torch.Tensor]],
) -> Result:
    """Compile with one set of values, keep the outputs for another, count graphs."""
    SYSTEMS[system].start_counting()
    torch.manual_seed(0)
    compiled[system] = worker.make_and_call(system, case)
    args, kwargs = case.arguments(_COMPARED_SEED)
    outputs[system] = [t.clone() for t in tensors_in(compiled[system](*args, **kwargs))]
    return asdict(SYSTEMS[system].count_graphs())


# --- overhead: next to nothing to compute ------------------------------------------------------


class _ManyParameters(torch.nn.Module):
    """300 parameters that every call reads: what checking them costs is the overhead."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = torch.nn.ParameterList(torch.ones(2) for _ in range(300))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.cat(list(self.scales)).sum()


def _overhead(worker: _Worker) -> Result:
    """Microseconds a call of a one-line function and of a module with 300 parameters."""
    many = _ManyParameters().to(worker.device)
    return {
        "overhead": {
            "one-line function": _overhead_of(worker, _trivial),
            "module with 300 parameters": _overhead_of(worker, many),
        }
    }


def _overhead_of(worker: _Worker, function: Any) -> Result:
    x = torch.ones(8, device=worker.device)
    compiled: dict[str, Callable[..., Any]] = {}
    results: dict[str, Result] = {}

    def compile_for(system: str) -> Result:
        compiled[system], _ = worker.compile_and_call(system, function, (x,), {})
        return {}

    for name in worker.request.systems:
        results[name] = worker.attempt(name, "overhead", partial(compile_for, name))
    running = {name: f for name, f in compiled.items() if "error" not in results[name]}
    for name in running:
        SYSTEMS[name].settle()
    rounds = worker.request.settings.rounds
    times = interleave(running, lambda: ((x,), {}), worker.device, rounds)
    for name, seconds in times.items():
        results[name]["call_us"] = [second * 1e6 for second in seconds]
    return {"systems": results}


_TASKS: dict[str, Callable[[_Worker], Result]] = {
    "start": _start,
    "steady": _steady,
    "overhead": _overhead,
}
