"""`python -m benchmarks.symbolic`: what symbolic sizes cost, in kernels and in tracing.

    python -m benchmarks.symbolic [--models bert,gpt2] [--rounds 25] [--no-peer] [--no-tracing]
                                  [--minutes 15] [--json FILE]

Each model is compiled with the sizes at hand (`dynamic=False`) and with symbols (`dynamic=True`),
by Braze and by torch.compile. Calls of both kinds and of eager are timed in one process, rounds
interleaved; the table shows medians of the rounds' ratios. Each model and compiler is a process of
its own, ended when its share of the time that is left is used up: its row says so. The file is
written after each. Tracing is what a first call of the backend
"aot_eager" takes above a later one, in processor time of its thread, the least of several; the
graph is captured, guarded and checked there, and no kernel is built. It is done at small sizes, so
that the calls are short.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, final

import torch

from benchmarks.intervals import geometric_mean, median, paired_ratio
from benchmarks.models import EIGHT, CallArguments, Case, Size, build, find, tensors_in
from benchmarks.systems import BRAZE, SYSTEMS, TORCH_COMPILE
from benchmarks.timing import interleave, warm_up

STATIC, SYMBOLIC = "static", "symbolic"
_FIXED_IMAGE = "vision_transformer"
_SHORT_SEQUENCE, _SMALL_IMAGE = 16, (64, 64)
_TRACINGS = 6  # of each kind
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@final
@dataclass(frozen=True, slots=True)
class Result:
    """One model. call_ms: the median call of each side; kernels, tracing: symbolic over static,
    by compiler; tracing_s: seconds of each side; failed: why there are no figures, by compiler."""

    model: str
    call_ms: dict[str, float]
    kernels: dict[str, float]
    kernels_interval: dict[str, tuple[float, float]]
    tracing_s: dict[str, float]
    tracing: dict[str, float]
    failed: dict[str, str] = field(default_factory=dict)

    def joined(self, other: Result) -> Result:
        """The figures of both: of one model, by other compilers. Eager's are the first one's."""
        pairs = {
            part.name: getattr(other, part.name) | getattr(self, part.name)
            for part in fields(self)
            if part.name != "model"
        }
        return Result(self.model, **pairs)


# --- measuring ----------------------------------------------------------------------------------


def compile_by(system: str, model: Any, dynamic: bool, backend: str | None) -> Callable[..., Any]:
    """A fresh compilation of the model by one of the two compilers."""
    chosen = {} if backend is None else {"backend": backend}
    if system == BRAZE:
        made: Callable[..., Any] = importlib.import_module("braze").compile(
            model, dynamic=dynamic, **chosen
        )
        return made
    return torch.compile(model, dynamic=dynamic, **chosen)


def forget(system: str) -> None:
    """What the compiler has compiled so far is forgotten."""
    importlib.import_module("braze" if system == BRAZE else "torch._dynamo").reset()
    gc.collect()


def time_calls(case: Case, systems: Sequence[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of a call of each side, a figure a round. Results are compared with eager's."""
    expected = tensors_in(_call(case.model, case))
    sides: dict[str, Callable[..., Any]] = {"eager": case.model}
    for system in systems:
        for dynamic, kind in ((False, STATIC), (True, SYMBOLIC)):
            made = compile_by(system, case.model, dynamic, None)
            for mine, right in zip(tensors_in(_call(made, case)), expected, strict=True):
                tolerance = 1e-3 if mine.dtype is torch.float32 else 5e-2
                torch.testing.assert_close(mine, right, rtol=tolerance, atol=tolerance)
            sides[f"{system} {kind}"] = made
        SYSTEMS[system].settle()
    for side in sides.values():
        warm_up(side, lambda: case.arguments(0), "cpu")
    return interleave(sides, lambda: case.arguments(0), "cpu", rounds)


def time_tracing(case: Case, system: str) -> dict[str, float]:
    """Seconds of processor time that the thread spends on tracing, of both kinds in turns: the
    least first call less the least later one."""
    first: dict[str, list[float]] = {STATIC: [], SYMBOLIC: []}
    later: list[float] = []
    for turn in range(2 * _TRACINGS):
        kind = SYMBOLIC if turn % 2 else STATIC
        forget(system)
        made = compile_by(system, case.model, kind == SYMBOLIC, "aot_eager")
        first[kind].append(_thread_seconds(made, case))
        later.append(_thread_seconds(made, case))
    forget(system)
    return {f"{system} {kind}": min(times) - min(later) for kind, times in first.items()}


def smaller(case: Case, fixed_image: bool) -> Case:
    """The case with a batch of two at most, and short sequences or small images.

    fixed_image: the model takes images of one size.
    """

    def cut(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        lengths = [2, *([_SHORT_SEQUENCE] if value.dim() == 2 else [])]
        lengths += [] if fixed_image or value.dim() != 4 else [value.shape[1], *_SMALL_IMAGE]
        for dim, length in enumerate(lengths):
            value = value.narrow(dim, 0, min(length, value.shape[dim]))
        return value.contiguous()

    def arguments(seed: int) -> CallArguments:
        args, kwargs = case.arguments(seed)
        return tuple(map(cut, args)), {name: cut(value) for name, value in kwargs.items()}

    return replace(case, arguments=arguments)


def measure(
    name: str,
    systems: Sequence[str],
    dtype: torch.dtype,
    rounds: int,
    tracing: bool,
    size: Size = Size.BENCHMARK,
) -> Result:
    """All figures of one model."""
    with torch.no_grad():
        case = build(find(name), dtype, size=size)
        times = time_calls(case, systems, rounds) if rounds else {}
        for system in systems:
            forget(system)
        traced: dict[str, float] = {}
        small = smaller(case, name == _FIXED_IMAGE)
        for system in systems if tracing else ():
            traced |= time_tracing(small, system)
    ratios = {
        system: paired_ratio(times[f"{system} {SYMBOLIC}"], times[f"{system} {STATIC}"])
        for system in (systems if times else ())
    }
    return Result(
        model=name,
        call_ms={side: 1e3 * median(values) for side, values in times.items()},
        kernels={system: ratio.median for system, ratio in ratios.items()},
        kernels_interval={system: (ratio.low, ratio.high) for system, ratio in ratios.items()},
        tracing_s=traced,
        tracing={
            system: traced[f"{system} {SYMBOLIC}"] / traced[f"{system} {STATIC}"]
            for system in (systems if tracing else ())
        },
    )


def _call(function: Callable[..., Any], case: Case) -> Any:
    args, kwargs = case.arguments(0)
    return function(*args, **kwargs)


def _thread_seconds(function: Callable[..., Any], case: Case) -> float:
    args, kwargs = case.arguments(0)
    before = time.thread_time()
    function(*args, **kwargs)
    return time.thread_time() - before


# --- showing ------------------------------------------------------------------------------------


def show(result: Result) -> str:
    """The lines of one model."""
    calls = ", ".join(f"{side} {ms:.2f}" for side, ms in result.call_ms.items())
    lines = [f"{result.model}: {calls} ms"] if calls else [f"{result.model}:"]
    for system, ratio in result.kernels.items():
        low, high = result.kernels_interval[system]
        lines.append(f"  {system}: kernels {ratio:.3f} ({low:.3f} to {high:.3f})")
    for system, ratio in result.tracing.items():
        static, symbolic = (result.tracing_s[f"{system} {kind}"] for kind in (STATIC, SYMBOLIC))
        lines.append(f"  {system}: tracing {ratio:.2f} ({static:.3f} and {symbolic:.3f} s)")
    lines += [f"  {system}: {reason}" for system, reason in result.failed.items()]
    return "\n".join(lines)


def summary(results: Sequence[Result], systems: Sequence[str]) -> dict[str, dict[str, float]]:
    """Geometric means of the ratios over the models, by compiler."""
    found: dict[str, dict[str, float]] = {}
    for system in systems:
        kernels = geometric_mean(r.kernels[system] for r in results if system in r.kernels)
        tracing = geometric_mean(r.tracing[system] for r in results if system in r.tracing)
        pairs = {"kernels": kernels, "tracing": tracing}
        found[system] = {name: mean for name, mean in pairs.items() if mean is not None}
    return found


def write(path: Path, results: Sequence[Result], systems: Sequence[str]) -> None:
    """The file of what is measured so far."""
    written = {
        "models": [asdict(result) for result in results],
        "geometric_means": summary(results, systems),
    }
    path.write_text(json.dumps(written, indent=1) + "\n")


# --- processes ----------------------------------------------------------------------------------


def measure_apart(name: str, system: str, options: Sequence[str], limit_s: float) -> Result:
    """The figures of one model and compiler, by a process of its own."""
    with tempfile.TemporaryDirectory(prefix="symbolic-") as folder:
        file, log = Path(folder, "result.json"), Path(folder, "log")
        command = [sys.executable, "-m", "benchmarks.symbolic", "--here", system, *options]
        with log.open("w") as lines:
            process = subprocess.Popen(
                [*command, "--models", name, "--json", str(file)],
                stdout=lines,
                stderr=lines,
                start_new_session=True,
            )
            reason = _ended(process, limit_s)
        if not reason and file.exists():
            (found,) = json.loads(file.read_text())["models"]
            return Result(**found)
        last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return Result(name, {}, {}, {}, {}, {}, {system: reason or (last or ["no result"])[-1]})


def _ended(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """Wait for a process, and end it and those that it started; why it gave nothing, or ""."""
    try:
        process.wait(limit_s)
        return ""
    except subprocess.TimeoutExpired:
        return f"stopped after {limit_s:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def measure_all(chosen: argparse.Namespace, systems: Sequence[str]) -> list[Result]:
    """Every model by every compiler, shown and written one by one. Ours comes first: what it leaves
    of the time is the other one's, whose compiles take longer."""
    passed = ["--dtype", chosen.dtype, "--rounds", str(chosen.rounds)]
    passed += ["--threads", str(chosen.threads)] if chosen.threads else []
    passed += ["--no-tracing"] if chosen.no_tracing else []
    passed += ["--tiny"] if chosen.tiny else []
    names = chosen.models.split(",")
    end = time.monotonic() + 60 * chosen.minutes
    turns = [(system, name) for system in systems for name in names]
    results: dict[str, Result] = {}
    for number, (system, name) in enumerate(turns):
        left = len(turns) - number
        share_s = max(end - time.monotonic(), 1.0) / left
        part = measure_apart(name, system, passed, share_s * (2 if left > 2 else 1))
        results[name] = results[name].joined(part) if name in results else part
        print(show(part), flush=True)
        if chosen.json is not None:
            write(chosen.json, list(results.values()), systems)
    return list(results.values())


def measure_here(chosen: argparse.Namespace, systems: Sequence[str]) -> list[Result]:
    """Every model, in this process."""
    size = Size.TINY if chosen.tiny else Size.BENCHMARK
    dtype, tracing = _DTYPES[chosen.dtype], not chosen.no_tracing
    return [
        measure(name, systems, dtype, chosen.rounds, tracing, size)
        for name in chosen.models.split(",")
    ]


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and write the JSON where it is asked for."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    options.add_argument("--models", default=",".join(EIGHT), help="of these, by commas")
    options.add_argument("--dtype", default="float32", choices=[*_DTYPES])
    options.add_argument("--rounds", type=int, default=25, help="0: time no kernels")
    options.add_argument("--threads", type=int, default=None)
    options.add_argument("--no-peer", action="store_true", help="without torch.compile")
    options.add_argument("--no-tracing", action="store_true", help="time no tracing")
    options.add_argument("--tiny", action="store_true", help="models as small as those of tests")
    options.add_argument("--minutes", type=float, default=60.0, help="for all of it")
    options.add_argument("--here", help="measure this compiler in this process")
    options.add_argument("--json", type=Path, help="file to write")
    chosen = options.parse_args(arguments)
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    systems = [BRAZE] if chosen.no_peer else [BRAZE, TORCH_COMPILE]
    if chosen.here:
        systems = [chosen.here]
    results = (measure_here if chosen.here else measure_all)(chosen, systems)
    if chosen.here:
        print("\n".join(map(show, results)))
    for system, pairs in summary(results, systems).items():
        text = ", ".join(f"{name} {mean:.3f}" for name, mean in pairs.items())
        number = sum(system not in result.failed for result in results)
        print(f"{system}, symbolic over static, geometric mean of {number}: {text}")
    if chosen.json is not None:
        write(chosen.json, results, systems)
    return 0


if __name__ == "__main__":
    sys.exit(main())
