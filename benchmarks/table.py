"""The report as rich tables. A system that failed shows as "failed", never as an empty cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks.harness import title_of
from benchmarks.intervals import Ratio
from benchmarks.results import Measured, ModelResult, Report, failures, mean_of
from benchmarks.systems import BRAZE, EAGER, TORCH_COMPILE, TORCH_COMPILE_AUTOGRAD
from benchmarks.work import WORKS

_COLORS = {
    EAGER: "white",
    TORCH_COMPILE: "yellow",
    TORCH_COMPILE_AUTOGRAD: "yellow",
    BRAZE: "cyan",
}
# The load per core from which a machine counts as busy with something else.
_BUSY = 0.5
_PARTIAL = "*"
_MISSING = Text("–", style="dim")
_LAYOUT: dict[str, Any] = {
    "box": box.SIMPLE_HEAD,
    "padding": (0, 1),
    "collapse_padding": True,
    "pad_edge": False,
}


@final
@dataclass(frozen=True, slots=True)
class _Column:
    """One column: what it shows of one system, and the figure whose geometric mean ends it."""

    heading: str
    unit: str
    system: str
    show: Callable[[Measured], str | None]
    mean: str | None = None
    show_mean: Callable[[float], str] = str


# --- cells -------------------------------------------------------------------------------------


def _milliseconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _times(value: float | None) -> str | None:
    return None if value is None else f"{value:.2f}×"


def _seconds(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _interval(ratio: Ratio | None) -> str | None:
    if ratio is None:
        return None
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _graphs_and_breaks(found: Measured) -> str | None:
    return None if found.graphs is None else f"{found.graphs} / {found.breaks}"


def _largest_error(found: Measured) -> str | None:
    return None if found.accuracy is None else f"{found.accuracy.largest_error:.1e}"


def _float64_ratio(found: Measured) -> str | None:
    if found.accuracy is None or found.accuracy.float64_ratio is None:
        return None
    return f"{found.accuracy.float64_ratio:.2f}×"


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _mebibytes(found: Measured) -> str | None:
    memory = found.peak_device_memory_mib or found.peak_memory_mib
    return None if memory is None else f"{memory:.0f}"


# --- columns -----------------------------------------------------------------------------------


def _each(systems: Sequence[str], *column: Any, **figures: Any) -> list[_Column]:
    heading, unit, show = column
    return [_Column(heading, unit, system, show, **figures) for system in systems]


_COMPILERS = (TORCH_COMPILE, TORCH_COMPILE_AUTOGRAD, BRAZE)
_ALL = (EAGER, *_COMPILERS)

_DEMO = [
    *_each(_ALL, "time", "ms", lambda m: _milliseconds(m.median_ms)),
    *_each(
        _COMPILERS, "speedup", "", lambda m: _times(m.speedup), mean="speedup", show_mean=_times
    ),
    *_each(
        _COMPILERS,
        "cold",
        "s",
        lambda m: _seconds(m.cold_compile.wall_s if m.cold_compile else None),
        mean="cold_compile_wall_s",
        show_mean=_seconds,
    ),
    *_each(_COMPILERS, "graphs", "breaks", _graphs_and_breaks),
    *_each(_COMPILERS, "largest", "error", _largest_error),
]

_TIMES = [
    *_each(_ALL, "time", "ms", lambda m: _milliseconds(m.median_ms)),
    *_each(
        _COMPILERS,
        "time over eager's",
        "[95 % interval]",
        lambda m: _interval(m.time_ratio),
        mean="speedup",
        show_mean=lambda mean: f"{1 / mean:.3f}",
    ),
    *_each(
        (BRAZE,),
        "time over torch.compile's",
        "[95 % interval]",
        lambda m: _interval(m.ratio_to_torch_compile),
        mean="time_ratio_to_torch_compile",
        show_mean=lambda mean: f"{mean:.3f}",
    ),
]


def _seconds_of(attribute: str, clock: str) -> Callable[[Measured], str | None]:
    def show(found: Measured) -> str | None:
        elapsed = getattr(found, attribute)
        return None if elapsed is None else _seconds(getattr(elapsed, f"{clock}_s"))

    return show


_COMPILE = [
    column
    for heading, attribute in (
        ("cold", "cold_compile"),
        ("later", "cold_compile_later"),
        ("warm", "warm_start"),
    )
    for clock, unit in (("wall", "wall s"), ("processor", "CPU s"))
    for column in _each(
        _COMPILERS,
        heading,
        unit,
        _seconds_of(attribute, clock),
        mean=f"{attribute}_{clock}_s",
        show_mean=_seconds,
    )
]

_QUALITY = [
    *_each(_COMPILERS, "graphs", "breaks", _graphs_and_breaks),
    *_each(_COMPILERS, "largest", "error", _largest_error),
    *_each(_COMPILERS, "error to", "float64", _float64_ratio),
    *_each(_ALL, "memory", "MiB", _mebibytes, mean="peak_memory_mib", show_mean=_whole),
    *_each(
        _ALL,
        "over base",
        "MiB",
        lambda m: None if m.peak_above_base_mib is None else _whole(m.peak_above_base_mib),
        mean="peak_above_base_mib",
        show_mean=_whole,
    ),
]


# --- tables ------------------------------------------------------------------------------------


def demo_table(report: Report) -> RenderableType:
    """What `make demo` prints."""
    tables = [_table(report, dtype, _DEMO, "") for dtype in report.dtypes]
    return Group(*tables, *_footnotes(report, _METHOD))


def full_tables(report: Report) -> RenderableType:
    """What `make bench` prints."""
    parts: list[RenderableType] = []
    for dtype in report.dtypes:
        parts += [
            _table(report, dtype, _TIMES, ": time"),
            _table(report, dtype, _COMPILE, ": compiling"),
            _table(report, dtype, _QUALITY, ": graphs, errors, memory"),
        ]
    notes = _footnotes(report, f"{_METHOD}\n{_FULL_METHOD}")
    return Group(*parts, _overhead_table(report), *notes)


def _table(report: Report, dtype: str, columns: list[_Column], title: str) -> Table:
    results = report.of_dtype(dtype)
    shown = [column for column in columns if column.system in results[0].systems]
    work = report.settings.get("work", "forward")
    done = "" if work == "forward" else f", {WORKS[work].title}"
    table = Table(
        title=f"{dtype}{done}{title}", title_style="bold", title_justify="left", **_LAYOUT
    )
    table.add_column("\n\n\nmodel", no_wrap=True)
    for column in shown:
        name = title_of(column.system).replace("torch.compile", "torch.\ncompile")
        heading = Text(f"{name}\n", style=_COLORS[column.system], justify="right")
        heading.append("\n" * (1 - name.count("\n")))
        heading.append(f"{column.heading}\n{column.unit}")
        table.add_column(heading, justify="right", style=_COLORS[column.system], no_wrap=True)
    for result in results:
        table.add_row(result.title, *[_cell(column, result) for column in shown])
    if any(column.mean for column in shown):
        table.add_section()
        means = [_mean_cell(column, results) for column in shown]
        table.add_row("geometric mean", *means, style="bold")
    return table


def _cell(column: _Column, result: ModelResult) -> Text:
    found = result.systems[column.system]
    shown = column.show(found)
    if shown is not None:
        return Text(shown, style="" if found.sound else "bold red")
    return Text("failed", style="bold red") if found.error else _MISSING


def _mean_cell(column: _Column, results: Sequence[ModelResult]) -> Text:
    if column.mean is None:
        return Text("")
    mean = mean_of(results, column.system, column.mean)
    if mean.value is None:
        return _MISSING
    partial = "" if mean.count == mean.total else _PARTIAL
    return Text(column.show_mean(mean.value) + partial)


def _overhead_table(report: Report) -> Table:
    table = Table(title="overhead: µs a call on tiny inputs", title_justify="left", **_LAYOUT)
    systems = list(dict.fromkeys(name for row in report.overhead for name in row.call_us))
    table.add_column("called")
    for system in systems:
        table.add_column(title_of(system), justify="right", style=_COLORS[system])
    for row in report.overhead:
        cells = [row.call_us[system] for system in systems]
        table.add_row(row.title, *["failed" if isinstance(c, str) else f"{c:.1f}" for c in cells])
    return table


_METHOD = (
    "time: median of interleaved rounds in one process a model. speedup: median of eager's time"
    " over the system's,\nround by round. cold: a fresh process with empty caches, from the call of"
    " compile to the end of the first call\n(of training steps the second, which compiles too),"
    " imports not counted. largest error: to eager."
    " *: without the models that failed or were not measured."
)
_FULL_METHOD = (
    "later: the same after a trivial compile in the same process. warm: the same in a second"
    " process, caches filled.\nCPU s: processor seconds, of all processes started too. error to"
    " float64: over eager's own. memory: most that a fresh\nprocess with filled caches ever held"
    " (CUDA: most that its tensors held)."
)


def _footnotes(report: Report, method: str) -> list[Text]:
    notes = [Text(method, style="dim")]
    if report.machine["load"] > _BUSY * report.machine["cores"]:
        busy = f"The machine was busy when this began (load {report.machine['load']})"
        notes.append(Text(f"{busy}: do not trust these times.", style="bold yellow"))
    costs = [
        f"{title_of(system)} {elapsed.wall_s:.1f} s wall, {elapsed.processor_s:.1f} s processor"
        for system, elapsed in report.first_compile.items()
        if elapsed is not None
    ]
    if costs:
        text = "Of each cold compile, what the first compile of any process costs: "
        notes.append(Text(text + "; ".join(costs) + ".", style="dim"))
    for system in dict.fromkeys(name for result in report.models for name in result.systems):
        style = "bold red" if system in (EAGER, BRAZE) else "yellow"
        notes += [
            Text(f"{title_of(system)} failed: {line}", style=style)
            for line in failures(report, system)
        ]
    return notes
