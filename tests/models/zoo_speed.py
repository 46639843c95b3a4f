"""How fast the zoo's models are, eagerly and compiled: which are slower than eager, and why.

    python -m tests.models.zoo_speed --device cuda --jobs 12     # those below 1.1, then a summary
    python -m tests.models.zoo_speed --all bert swin --device cuda

Each model has a process of its own. They compile at once and are timed one at a time; while others
compile, the host is slower than it is alone, so what is slow here is to be timed again by itself.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import functools
import multiprocessing
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any, final

import torch
from benchmarks.clocks import synchronize
from benchmarks.intervals import geometric_mean, median, paired_ratio
from benchmarks.timing import interleave
from torch import nn

import braze
from braze.report.explain import summarise
from tests.models.zoo import ALL, NO_TRAINING, Sizes, build, tensors_in
from tests.recorded import recorded

LARGE = Sizes(texts=4, tokens=64, images=8, batch=16, side=224)
_FIRST_CALLS = 8  # behind which what is recorded is recorded
_ROUNDS = 7
_SLOW = 1.1


@final
@dataclass(frozen=True, slots=True)
class Speed:
    """ratio: eager's time over the compiled call's; first_s: seconds of the first calls."""

    name: str
    work: str
    ratio: float
    eager_ms: float
    compiled_ms: float
    first_s: float
    graphs: int
    breaks: int
    fallbacks: tuple[str, ...]

    def __str__(self) -> str:
        return (
            f"{self.ratio:6.2f}x {self.name:32} {self.work:9} eager {self.eager_ms:8.2f} ms "
            f"compiled {self.compiled_ms:8.2f} ms, first calls {self.first_s:5.1f} s, graphs "
            f"{self.graphs} breaks {self.breaks} {'; '.join(self.fallbacks)}"
        )


def measure(name: str, work: str, device: str, mode: str | None, lock: str) -> Speed:
    """One model's inference, or its forward and backward in training mode ("training").
    lock: path of a file that whoever times holds."""
    model, given = build(name, device, LARGE)
    model.train(work == "training")
    own = copy.deepcopy(model)
    with recorded() as journal:
        compiled = braze.compile(own, mode=mode)
    eagerly = _call(model, model, given, work)
    call = _call(own, compiled, given, work)
    eagerly()
    synchronize(device)
    began = time.perf_counter()
    for _ in range(_FIRST_CALLS):
        call()
    synchronize(device)
    first_s = time.perf_counter() - began
    with open(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        functions = {"eager": eagerly, "compiled": call}
        times = interleave(functions, lambda: ((), {}), device, _ROUNDS)
    ratio = paired_ratio(times["eager"], times["compiled"]).median
    found = summarise("", journal, None)
    return Speed(
        name,
        work,
        ratio,
        1e3 * median(times["eager"]),
        1e3 * median(times["compiled"]),
        first_s,
        found.graph_count,
        found.break_count,
        found.fallbacks,
    )


def _call(model: nn.Module, call: Any, given: Mapping[str, Any], work: str) -> Callable[[], object]:
    named = {key: value for key, value in given.items() if key}
    unnamed = [given[""]] if "" in given else []

    def infer() -> object:
        with torch.no_grad():
            return call(*unnamed, **named)

    def train() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        results = [t for t in tensors_in(call(*unnamed, **named)) if t.requires_grad]
        torch.stack([t.float().sum() for t in results if t.is_floating_point()]).sum().backward()

    return train if work == "training" else infer


def _report(
    case: tuple[str, str], device: str, mode: str | None, lock: str, everything: bool
) -> Speed | None:
    warnings.filterwarnings("ignore")
    name, work = case
    try:
        found = measure(name, work, device, mode, lock)
    except Exception as error:
        text = f"FAILED {name} {work}: {type(error).__name__}: {str(error).splitlines()[:1]}"
        print(text, flush=True)
        return None
    if everything or found.ratio < _SLOW or found.fallbacks:
        print(found, flush=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a model raises."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("names", nargs="*", help="models (default: all)")
    options.add_argument("--device", default="cpu", help="where the models are")
    options.add_argument("--mode", help="that they are compiled in")
    options.add_argument("--jobs", type=int, default=1, help="processes that compile at once")
    options.add_argument("--all", action="store_true", help="print fast ones, too")
    chosen = options.parse_args(arguments)
    names = sorted(chosen.names or ALL, key=lambda name: "/" not in name)  # the longest first
    cases = [(n, w) for n in names for w in ("inference", "training")]
    cases = [(n, w) for n, w in cases if w == "inference" or n not in NO_TRAINING]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "transformers"])
    with tempfile.NamedTemporaryFile() as file:
        one = functools.partial(
            _report,
            device=chosen.device,
            mode=chosen.mode,
            lock=file.name,
            everything=chosen.all,
        )
        with ProcessPoolExecutor(chosen.jobs, context, max_tasks_per_child=1) as processes:
            found = [speed for speed in processes.map(one, cases) if speed is not None]
    mean = geometric_mean([speed.ratio for speed in found]) or 0.0
    slower = sum(speed.ratio < 1 for speed in found)
    print(f"{len(found)} of {len(cases)} ran, {mean:.2f}x eager in the mean, {slower} slower")
    return int(len(found) != len(cases))


if __name__ == "__main__":
    sys.exit(main())
