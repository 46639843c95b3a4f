"""Braze as it is here beside Braze of another checkout: what became slower, or quicker.

    python -m benchmarks.versions ../older [--models resnet18,bert] [--work forward,backward]
                                  [--device cuda] [--turns 3] [--rounds 15]

Each model and work is measured in processes of its own, which take turns: the other checkout's,
this one's, the other's, and so on; of the other nothing but `src` is used. A turn's figure is the
median of its rounds. A whole turn can be disturbed, so that a case counts as slower, or quicker, if
each turn of one is so beside each turn of the other, by more than --margin. Status 1: something
became slower, or failed here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from benchmarks.intervals import median
from benchmarks.models import MODELS, build
from benchmarks.request import GRAD_MODES
from benchmarks.systems import BRAZE, SYSTEMS
from benchmarks.timing import interleave
from benchmarks.work import WORKS

HERE = Path(__file__).resolve().parent.parent
_EIGHT = tuple(name for name, spec in MODELS.items() if spec.variant_of is None)

# (checkout, model, work) -> milliseconds a call.
Measure = Callable[[Path, str, str], float]


@final
@dataclass(frozen=True, slots=True)
class Turns:
    """Milliseconds a call of one case, one figure a turn. error: why there are none."""

    other: tuple[float, ...] = ()
    here: tuple[float, ...] = ()
    error: str = ""

    def verdict(self, margin: float) -> str:
        """What the turns agree on."""
        if self.error:
            return f"failed: {self.error}"
        if min(self.here) > max(self.other) * (1 + margin):
            return "slower"
        return "quicker" if max(self.here) * (1 + margin) < min(self.other) else ""


def compare(other: Path, model: str, work: str, turns: int, measure: Measure) -> Turns:
    """One case in both checkouts, in turns."""
    found: dict[Path, list[float]] = {other: [], HERE: []}
    for _ in range(turns):
        for checkout, times in found.items():
            try:
                times.append(measure(checkout, model, work))
            except subprocess.CalledProcessError as fault:
                last = (fault.stderr.strip().splitlines() or ["it died"])[-1]
                return Turns(error=f"{'here' if checkout is HERE else 'there'}: {last[:200]}")
    return Turns(tuple(found[other]), tuple(found[HERE]))


def main(arguments: list[str] | None = None) -> int:
    """Measure and print, a line a case; the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--models", default=",".join(_EIGHT), help="with commas")
    parser.add_argument("--work", default="forward,backward", help="with commas")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--margin", type=float, default=0.03)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    models, works = chosen.models.split(","), chosen.work.split(",")
    unknown = [*({*models} - MODELS.keys()), *({*works} - WORKS.keys())]
    if unknown or not (chosen.other / "src" / "braze").is_dir():
        known = f"models {', '.join(MODELS)}; work {', '.join(WORKS)}"
        parser.error(f"{', '.join(unknown) or chosen.other}: not there. There are {known}.")
    if chosen.one:
        print(json.dumps(milliseconds(models[0], works[0], chosen.device, chosen.rounds)))
        return 0

    def measure(checkout: Path, model: str, work: str) -> float:
        return _in_a_process(checkout, model, work, chosen.device, chosen.rounds)

    worse = False
    for model in models:
        for work in works:
            found = compare(chosen.other.resolve(), model, work, chosen.turns, measure)
            verdict = found.verdict(chosen.margin)
            worse |= verdict.startswith(("slower", "failed"))
            print(line(model, work, found, verdict), flush=True)
    return int(worse)


def milliseconds(model: str, work: str, device: str, rounds: int) -> float:
    """Of one call, in this process, by the Braze that it imports."""
    case, kind = build(MODELS[model], device=device), WORKS[work]
    system = SYSTEMS[BRAZE]
    with GRAD_MODES[kind.grad_mode or "no_grad"]():
        call = kind.make(case, lambda function: system.compile(function, None))
        for _ in range(kind.compiling_calls):
            args, kwargs = case.arguments(0)
            call(*args, **kwargs)
        system.settle()
        times = interleave({BRAZE: call}, lambda: case.arguments(0), device, rounds)
    return 1e3 * median(times[BRAZE])


def line(model: str, work: str, found: Turns, verdict: str) -> str:
    """A case as it is printed: the figures of all turns, and the ratio of the least."""
    if found.error:
        return f"{model:<20} {work:<9} {verdict}"
    ratio = min(found.here) / min(found.other)
    return (
        f"{model:<20} {work:<9} there {_figures(found.other)}  here {_figures(found.here)}  "
        f"{ratio:.3f} {verdict}"
    ).rstrip()


# --- private ---------------------------------------------------------------------------------


def _in_a_process(checkout: Path, model: str, work: str, device: str, rounds: int) -> float:
    """`milliseconds` of a checkout's Braze, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.versions", str(checkout), "--one"]
    command += ["--models", model, "--work", work, "--device", device, "--rounds", str(rounds)]
    paths = os.pathsep.join([str(checkout / "src"), str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        cwd=HERE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return float(json.loads(done.stdout.strip().splitlines()[-1]))


def _figures(times: Sequence[float]) -> str:
    return " ".join(f"{time:.2f}" for time in times)


if __name__ == "__main__":
    sys.exit(main())
