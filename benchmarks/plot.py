"""The comparison as a picture: speedup, cold compile time, and the geometric means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks.harness import title_of
from benchmarks.results import Mean, Measured, ModelResult, Report, mean_of
from benchmarks.systems import BRAZE, EAGER, TORCH_COMPILE, TORCH_COMPILE_AUTOGRAD
from benchmarks.work import WORKS

_COLORS = {
    EAGER: "#8c8c8c",
    TORCH_COMPILE: "#e8a33d",
    TORCH_COMPILE_AUTOGRAD: "#b97a17",
    BRAZE: "#1f6fb4",
}
_INK, _FAINT, _FAILED = "#222222", "#dddddd", "#b3261e"
_BARS_HEIGHT = 0.72  # of all bars of a row
_LABEL_ROOM = 1.14  # an axis ends this much beyond its longest bar
_COMPILERS = (TORCH_COMPILE, TORCH_COMPILE_AUTOGRAD, BRAZE)


def draw(report: Report, dtype: str, path: Path) -> None:
    """Write a PNG of the results of one dtype: a row a model, geometric means last."""
    results = report.of_dtype(dtype)
    systems = [system for system in _COMPILERS if system in results[0].systems]
    style = {"font.family": "DejaVu Sans", "font.size": 10, "text.color": _INK}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(13, 2.8 + 0.62 * (len(results) + 1)), layout="constrained")
        speed, compiling = figure.subplots(1, 2, sharey=True)
        _draw_speedups(speed, results, systems)
        _draw_compile_times(compiling, results, systems)
        _label_rows(speed, results)
        figure.suptitle(_title(report, dtype), fontsize=13, fontweight="bold")
        handles, labels = speed.get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="outside lower center", ncols=len(handles), frameon=False
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, facecolor="white", metadata={"Software": None})


def _title(report: Report, dtype: str) -> str:
    machine = report.machine
    where = machine.get("device") or (
        f"{machine['cores']} CPU cores ({machine['architecture']}, "
        f"{machine['vector_instructions']}), {machine['threads']} threads"
    )
    settings = report.settings
    mode = {"no_grad": "inference", "inference": "inference", "grad": "forward, gradients on"}
    done = mode[settings["grad_mode"]]
    if settings.get("work", "forward") != "forward":
        done = WORKS[settings["work"]].title
    count = len(report.of_dtype(dtype))
    return (
        f"Braze and torch.compile on {count} models: {dtype}, "
        f"{done}\n{where}, torch {report.versions['torch']}"
    )


def _draw_speedups(axes: Any, results: Sequence[ModelResult], systems: Sequence[str]) -> None:
    axes.axvline(1, color=_COLORS[EAGER], linewidth=1.5, zorder=3, label="eager")
    _draw_bars(
        axes, results, systems, "speedup", lambda m: m.speedup, lambda v: f"{v:.2f}×", _whiskers
    )
    axes.set_title("Speedup over eager: more is better", loc="left", fontweight="bold")
    axes.set_xlabel("eager's time a call over the system's, with 95 % interval (×)")


def _draw_compile_times(axes: Any, results: Sequence[ModelResult], systems: Sequence[str]) -> None:
    _draw_bars(
        axes,
        results,
        systems,
        "cold_compile_wall_s",
        lambda m: m.cold_compile.wall_s if m.cold_compile else None,
        lambda v: f"{v:.1f} s",
    )
    axes.set_title("Cold compile: less is better", loc="left", fontweight="bold")
    axes.set_xlabel("seconds by the wall clock, fresh process, caches empty, imports not counted")


def _whiskers(found: Measured) -> tuple[float, float] | None:
    """How far the interval reaches below and above the speedup."""
    if found.time_ratio is None:
        return None
    speedup = found.time_ratio.inverted()
    return speedup.median - speedup.low, speedup.high - speedup.median


def _draw_bars(
    axes: Any,
    results: Sequence[ModelResult],
    systems: Sequence[str],
    mean_figure: str,
    figure_of: Callable[[Measured], float | None],
    text: Callable[[float], str],
    whiskers: Callable[[Measured], tuple[float, float] | None] = lambda found: None,
) -> None:
    height = _BARS_HEIGHT / max(len(systems), 1)
    for place, system in enumerate(systems):
        shift = (place - (len(systems) - 1) / 2) * height
        mean = mean_of(results, system, mean_figure)
        found = [result.systems[system] for result in results]
        values = [*map(figure_of, found), mean.value]
        spans = [*map(whiskers, found), None]
        labels = [_label(part, figure_of(part), text) for part in found] + [_mean_label(mean, text)]
        rows = [row + shift for row in _rows(results)]
        widths = [value or 0 for value in values]
        bars = axes.barh(rows, widths, height, color=_COLORS[system], label=title_of(system))
        for row, value, span, label in zip(rows, values, spans, labels, strict=True):
            end = _draw_whisker(axes, row, value, span)
            color = _FAILED if label.isalpha() or label.endswith("!") else _INK
            place_of_text = {"textcoords": "offset points", "va": "center", "zorder": 4}
            behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}  # eager's line
            axes.annotate(
                label, (end, row), (4, 0), fontsize=9, color=color, bbox=behind, **place_of_text
            )
        bars[-1].set_alpha(0.85)
    _finish(axes, results)


def _label(found: Measured, value: float | None, text: Callable[[float], str]) -> str:
    if value is None:
        return "failed" if found.error else "–"
    if found.sound:
        return text(value)
    reason = "failed" if found.error else "fell back" if found.fallbacks else "wrong"
    return f"{text(value)} {reason}!"


def _mean_label(mean: Mean, text: Callable[[float], str]) -> str:
    if mean.value is None:
        return "–"
    return text(mean.value) + (
        "" if mean.count == mean.total else f" ({mean.count} of {mean.total})"
    )


def _draw_whisker(
    axes: Any, row: float, value: float | None, span: tuple[float, float] | None
) -> float:
    """The interval as a thin line over the bar's end; where the label may begin."""
    if value is None or span is None:
        return value or 0
    axes.errorbar(value, row, xerr=[[span[0]], [span[1]]], color=_INK, linewidth=1, capsize=2)
    return value + span[1]


def _rows(results: Sequence[ModelResult]) -> list[float]:
    """Where rows stand from the top; the geometric mean apart from the models."""
    return [float(index) for index in range(len(results))] + [len(results) + 0.35]


def _finish(axes: Any, results: Sequence[ModelResult]) -> None:
    axes.set_xlim(0, _LABEL_ROOM * axes.dataLim.x1)
    axes.grid(axis="x", color=_FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.axhline(len(results) - 0.32, color=_FAINT, linewidth=1)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _label_rows(axes: Any, results: Sequence[ModelResult]) -> None:
    axes.set_yticks(_rows(results), [result.title for result in results] + ["geometric mean"])
    axes.get_yticklabels()[-1].set_fontweight("bold")
    axes.invert_yaxis()
