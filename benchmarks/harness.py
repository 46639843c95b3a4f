"""The order of a run: which fresh process measures what, with which caches.

For each model and dtype, one process each for

    cold compile of every compiler                 caches empty
    interleaved timing of all systems              caches filled by those before
and in a full run
    warm start of all                              caches filled
    cold compile of all after a trivial one        caches empty
    eager alone                                    for its peak memory
Nothing runs beside a measurement.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, final

from benchmarks.clocks import Elapsed
from benchmarks.intervals import median
from benchmarks.machine import describe_machine, describe_versions, today
from benchmarks.models import find
from benchmarks.processes import Caches, empty_caches, run
from benchmarks.request import Request, Settings
from benchmarks.results import Measured, ModelResult, Overhead, Report, measured
from benchmarks.systems import BRAZE, EAGER, SYSTEMS, TORCH_COMPILE, TORCH_COMPILE_AUTOGRAD

COMPILERS = (TORCH_COMPILE, TORCH_COMPILE_AUTOGRAD, BRAZE)
ALL_SYSTEMS = (EAGER, TORCH_COMPILE, BRAZE)

# Both ways of torch.compile fill the same caches: where the second found what the first had left,
# its cold compile would be a warm start.
_WITH_SECOND_CACHES = (TORCH_COMPILE_AUTOGRAD,)

# How long a process takes next to others, for the progress bar.
_WEIGHTS = {"cold torch_compile": 30, "later torch_compile": 30, "steady": 20, "overhead": 20}
_USUAL_WEIGHT = 6
# The longest that one process may take, and the least that is worth starting one for.
_PROCESS_S = 600.0
_LEAST_S = 5.0


class Watcher(Protocol):
    """Is told what happens: `total` weights in all, then phases and finished weights."""

    def begin(self, total: int) -> None: ...
    def phase(self, text: str) -> None: ...
    def advance(self, weight: int) -> None: ...
    def failed(self, what: str, log: str) -> None: ...


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What to measure. `full` adds what only `make bench` shows; of that, `brief` leaves out the
    overhead and the cold compiles after a trivial one. limit_s: for all processes of a model and
    dtype together; what is left out then is an error of the systems that it would have measured."""

    models: tuple[str, ...]
    dtypes: tuple[str, ...]
    settings: Settings
    systems: tuple[str, ...] = ALL_SYSTEMS
    full: bool = False
    brief: bool = False
    limit_s: float = 1200.0

    @property
    def repeats_cold(self) -> bool:
        """Whether overhead and later cold compiles are measured."""
        return self.full and not self.brief

    @property
    def compilers(self) -> tuple[str, ...]:
        return tuple(system for system in COMPILERS if system in self.systems)


def _keep_nothing(report: Report) -> None:
    """For those who wait for the whole report."""


def measure_all(
    plan: Plan, watcher: Watcher, keep: Callable[[Report], None] = _keep_nothing
) -> Report:
    """Run the whole plan. Failures of a system are part of the report, never raised.

    keep: is given what there is of the report after each model, so that a run that is ended early
    leaves what it measured.
    """
    machine = describe_machine(plan.settings.device, plan.settings.threads)
    watcher.begin(_total_weight(plan))
    report = Report(
        date=today(),
        machine=machine,
        versions=describe_versions(),
        settings=dataclasses.asdict(plan.settings),
        models=(),
        first_compile={s: _first_compile(plan, s, watcher) for s in plan.compilers},
        overhead=(),
    )
    for dtype in plan.dtypes:
        for model in plan.models:
            found = _measure_model(plan, model, dtype, watcher)
            report = dataclasses.replace(report, models=(*report.models, found))
            keep(report)
    if plan.repeats_cold:
        report = dataclasses.replace(report, overhead=_overhead(plan, watcher))
    return report


def _total_weight(plan: Plan) -> int:
    kinds = [f"cold {system}" for system in plan.compilers] + ["steady"]
    once = [f"cold {system}" for system in plan.compilers]
    if plan.full:
        kinds += [f"warm {system}" for system in plan.systems]
    if plan.repeats_cold:
        kinds += [f"later {system}" for system in plan.compilers]
        once += ["overhead"]
    runs = len(plan.models) * len(plan.dtypes)
    return runs * sum(map(_weight, kinds)) + sum(map(_weight, once))


def _weight(kind: str) -> int:
    return _WEIGHTS.get(kind, _USUAL_WEIGHT)


def _perform(
    request: Request,
    kind: str,
    label: str,
    caches: Caches,
    watcher: Watcher,
    deadline: float = math.inf,
) -> dict[str, Any]:
    """One process's answer; it has until `deadline`, of the monotonic clock, and at most as long as
    any process."""

    def on_phase(text: str) -> None:
        watcher.phase(f"{label} · {text}")

    left = deadline - time.monotonic()
    if left < _LEAST_S:
        watcher.advance(_weight(kind))
        return {"error": f"left out: the model's time was up before its {kind}"}
    on_phase("starting")
    result = run(request, caches, on_phase, min(_PROCESS_S, left))
    log = result.pop("log", "")
    if log:
        watcher.failed(f"{label} · {kind}", log)
    watcher.advance(_weight(kind))
    return result


def _measure_model(plan: Plan, model: str, dtype: str, watcher: Watcher) -> ModelResult:
    title = find(model).title
    label = f"{title} {dtype}"
    deadline = time.monotonic() + plan.limit_s

    def start(kind: str, system: str, caches: Caches, first_compile: bool = False) -> Any:
        request = Request("start", (system,), plan.settings, model, dtype, first_compile)
        name = f"{kind} {system}"
        return _perform(request, name, f"{label} · {kind}", caches, watcher, deadline)

    with empty_caches() as shared, empty_caches() as second:
        of = {system: second if system in _WITH_SECOND_CACHES else shared for system in SYSTEMS}
        cold = {system: start("cold", system, of[system]) for system in plan.compilers}
        steady = _steady(plan, model, dtype, label, shared, watcher, deadline)
        warm: dict[str, Any] = {}
        if plan.full:
            warm = {system: start("warm", system, of[system]) for system in plan.systems}
    later: dict[str, Any] = {}
    for system in plan.compilers if plan.repeats_cold else ():
        with empty_caches() as caches:
            later[system] = start("later", system, caches, first_compile=True)
    found = {
        system: _merge(steady, system, cold.get(system), warm.get(system), later.get(system))
        for system in plan.systems
    }
    return ModelResult(model, title, dtype, found)


def _steady(
    plan: Plan,
    model: str,
    dtype: str,
    label: str,
    caches: Caches,
    watcher: Watcher,
    deadline: float,
) -> dict[str, Any]:
    """All systems in one process. Where that dies (a crash in generated code takes all with it),
    the others again without Braze, whose figures are then the failure."""
    request = Request("steady", plan.systems, plan.settings, model, dtype)
    steady = _perform(request, "steady", label, caches, watcher, deadline)
    others = tuple(system for system in plan.systems if system != BRAZE)
    if "error" not in steady or others == plan.systems or not others:
        return steady
    request = dataclasses.replace(request, systems=others)
    again = _perform(request, "again", label, caches, watcher, deadline)
    if "error" in again:
        return again
    return {"systems": {**again["systems"], BRAZE: {"error": steady["error"]}}}


def _merge(
    steady: dict[str, Any],
    system: str,
    cold: dict[str, Any] | None,
    warm: dict[str, Any] | None,
    later: dict[str, Any] | None,
) -> Measured:
    """One system's figures of all its processes; the first error of any of them is kept."""
    found = measured(steady, system)
    errors = [part["error"] for part in (cold, warm, later) if part and "error" in part]
    memory = next((part for part in (warm, cold) if part and "compile" in part), {})
    return dataclasses.replace(
        found,
        error=found.error or next(iter(errors), None),
        imports=_elapsed(cold or warm, "import"),
        cold_compile=_elapsed(cold, "compile"),
        cold_compile_later=_elapsed(later, "compile"),
        warm_start=_elapsed(warm, "compile") if system != EAGER else None,
        peak_memory_mib=memory.get("peak_memory_mib"),
        peak_above_base_mib=memory.get("peak_above_base_mib"),
        peak_device_memory_mib=memory.get("peak_device_memory_mib"),
    )


def _elapsed(part: dict[str, Any] | None, name: str) -> Elapsed | None:
    return Elapsed(**part[name]) if part and name in part else None


def _first_compile(plan: Plan, system: str, watcher: Watcher) -> Elapsed | None:
    """What compiling a one-line function costs in a fresh process with empty caches."""
    request = Request("start", (system,), plan.settings, first_compile=True)
    label = "one-line function"
    with empty_caches() as caches:
        result = _perform(request, f"cold {system}", label, caches, watcher)
    return _elapsed(result, "first_compile")


def _overhead(plan: Plan, watcher: Watcher) -> tuple[Overhead, ...]:
    request = Request("overhead", plan.systems, plan.settings)
    with empty_caches() as caches:
        result = _perform(request, "overhead", "overhead", caches, watcher)
    if "error" in result:
        return (Overhead("overhead", dict.fromkeys(plan.systems, result["error"])),)
    return tuple(_overhead_rows(result["overhead"], plan.systems))


def _overhead_rows(found: dict[str, Any], systems: Sequence[str]) -> Iterator[Overhead]:
    for title, part in found.items():
        figures: dict[str, float | str] = {}
        for system in systems:
            own = part["systems"][system]
            figures[system] = own["error"] if "error" in own else median(own["call_us"])
        yield Overhead(title, figures)


def title_of(system: str) -> str:
    """How a system is called in tables and pictures."""
    return SYSTEMS[system].title
