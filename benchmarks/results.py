"""What a run found: one `Measured` a model, dtype and system, in a `Report`; JSON in and out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, final

from benchmarks.accuracy import Accuracy
from benchmarks.clocks import Elapsed
from benchmarks.intervals import Ratio, geometric_mean, median, paired_ratio

FORMAT = 1


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One system on one model. None is "not measured"; `error` says what failed.

    call_ms: one figure a round. time_ratio: time over eager's, paired by round (below one is
    faster than eager). cold_compile: caches empty, fresh process, the one-time cost of a
    process's first compile included; cold_compile_later: without it. warm_start: the same in a
    second process, caches filled. None of the three includes imports. peak_memory_mib: high-water
    mark of the process of the warm start, everything included; peak_above_base_mib: above what
    torch, the model's library and Braze took when they were imported.
    """

    error: str | None = None
    call_ms: tuple[float, ...] = ()
    median_ms: float | None = None
    time_ratio: Ratio | None = None
    ratio_to_torch_compile: Ratio | None = None
    graphs: int | None = None
    breaks: int | None = None
    ops: int | None = None
    fallbacks: tuple[str, ...] = ()
    accuracy: Accuracy | None = None
    imports: Elapsed | None = None
    cold_compile: Elapsed | None = None
    cold_compile_later: Elapsed | None = None
    warm_start: Elapsed | None = None
    peak_memory_mib: float | None = None
    peak_above_base_mib: float | None = None
    peak_device_memory_mib: float | None = None

    @property
    def sound(self) -> bool:
        """Nothing failed, nothing fell back, and the result is right."""
        right = self.accuracy is None or self.accuracy.right
        return self.error is None and not self.fallbacks and right

    @property
    def speedup(self) -> float | None:
        return None if self.time_ratio is None else 1 / self.time_ratio.median


@final
@dataclasses.dataclass(frozen=True, slots=True)
class ModelResult:
    """Every system on one model in one dtype."""

    model: str
    title: str
    dtype: str
    systems: dict[str, Measured]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Overhead:
    """Microseconds a call on tiny inputs: title -> system -> median, or the error."""

    title: str
    call_us: dict[str, float | str]


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A whole run. first_compile: what the first compile of a process costs, by system."""

    date: str
    machine: dict[str, Any]
    versions: dict[str, Any]
    settings: dict[str, Any]
    models: tuple[ModelResult, ...]
    first_compile: dict[str, Elapsed | None]
    overhead: tuple[Overhead, ...] = ()

    @property
    def dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(result.dtype for result in self.models))

    def of_dtype(self, dtype: str) -> tuple[ModelResult, ...]:
        return tuple(result for result in self.models if result.dtype == dtype)


def measured(steady: dict[str, Any], system: str) -> Measured:
    """The part of a `steady` answer that belongs to one system."""
    if "error" in steady:
        return Measured(error=steady["error"])
    own = steady["systems"][system]
    if "error" in own:
        return Measured(error=own["error"])
    times = {name: part.get("call_ms", []) for name, part in steady["systems"].items()}
    return Measured(
        call_ms=tuple(own["call_ms"]),
        median_ms=median(own["call_ms"]),
        time_ratio=_ratio(own["call_ms"], times.get("eager")),
        ratio_to_torch_compile=_ratio(own["call_ms"], times.get("torch_compile")),
        graphs=own["graphs"],
        breaks=own["breaks"],
        ops=own["ops"],
        fallbacks=tuple(own["fallbacks"]),
        accuracy=Accuracy(**own["accuracy"]) if "accuracy" in own else None,
    )


def _ratio(own: list[float], others: list[float] | None) -> Ratio | None:
    return paired_ratio(own, others) if others else None


Figure = Callable[[Measured], float | None]

# What geometric means are taken of.
FIGURES: dict[str, Figure] = {
    "speedup": lambda m: m.speedup,
    "time_ratio_to_torch_compile": lambda m: (
        m.ratio_to_torch_compile.median if m.ratio_to_torch_compile else None
    ),
    "cold_compile_wall_s": lambda m: m.cold_compile.wall_s if m.cold_compile else None,
    "cold_compile_processor_s": lambda m: m.cold_compile.processor_s if m.cold_compile else None,
    "cold_compile_later_wall_s": lambda m: (
        m.cold_compile_later.wall_s if m.cold_compile_later else None
    ),
    "cold_compile_later_processor_s": lambda m: (
        m.cold_compile_later.processor_s if m.cold_compile_later else None
    ),
    "warm_start_wall_s": lambda m: m.warm_start.wall_s if m.warm_start else None,
    "warm_start_processor_s": lambda m: m.warm_start.processor_s if m.warm_start else None,
    "call_ms": lambda m: m.median_ms,
    "peak_memory_mib": lambda m: m.peak_memory_mib,
    "peak_above_base_mib": lambda m: m.peak_above_base_mib,
}


@final
@dataclasses.dataclass(frozen=True, slots=True)
class Mean:
    """A geometric mean over `count` of `total` models; the others failed or were not measured."""

    value: float | None
    count: int
    total: int


def mean_of(results: Iterable[ModelResult], system: str, figure: str) -> Mean:
    """The geometric mean of one of FIGURES for one system."""
    parts = [result.systems[system] for result in results if system in result.systems]
    values = [value for part in parts if (value := FIGURES[figure](part)) is not None]
    return Mean(geometric_mean(values), len(values), len(parts))


def failures(report: Report, system: str) -> list[str]:
    """A line for each thing that went wrong: a failure, a fallback to eager, a wrong result."""
    lines = []
    for result in report.models:
        found = result.systems.get(system, Measured())
        where = f"{result.title}, {result.dtype}"
        lines += [f"{where}: fell back, {reason}" for reason in found.fallbacks]
        if found.error:
            lines.append(f"{where}: {found.error}")
        if found.accuracy is not None and not found.accuracy.right:
            lines.append(f"{where}: wrong result, {_describe(found.accuracy)}")
    lines += [
        f"{overhead.title}: {figure}"
        for overhead in report.overhead
        if isinstance(figure := overhead.call_us.get(system), str)
    ]
    return lines


def _describe(accuracy: Accuracy) -> str:
    text = f"largest error against eager {accuracy.largest_error:.2g}"
    if accuracy.float64_ratio is None:
        return text
    return f"{text}, {accuracy.float64_ratio:.2g} times eager's own error against float64"


def to_json(report: Report) -> str:
    """The report with its geometric means. Suffixes are units: _ms, _us, _s, _mib, _gib."""
    systems = list(dict.fromkeys(name for result in report.models for name in result.systems))
    means = {
        dtype: {
            system: {
                figure: dataclasses.asdict(mean_of(report.of_dtype(dtype), system, figure))
                for figure in FIGURES
            }
            for system in systems
        }
        for dtype in report.dtypes
    }
    document = {"format": FORMAT, **dataclasses.asdict(report), "geometric_means": means}
    return json.dumps(document, indent=1) + "\n"


def write_json(report: Report, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(to_json(report))
