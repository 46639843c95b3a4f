"""Single kernels on a GPU: Braze's beside eager's and torch.compile's, as shares of a copy's rate.

    python -m benchmarks.kernels_gpu [--only softmax,sum] [--json FILE] [--tune] [--alone]

A case is traced on CPU tensors, scheduled and generated for CUDA, built, and started as plain
launches; one that calls ATen as well is compiled and called as a program is. Time is that of a
replayed CUDA graph over several sets of buffers, at least four times the second-level cache in all;
bytes are each input read once and each output written once. Errors are against the same function
in float64, on the device. --tune tries other block sizes as well; --alone leaves torch.compile out.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import datetime
import importlib.util
import itertools
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.errors import OutOfResources

import braze
from benchmarks.kernels_gpu_cases import Case, cases
from braze.codegen.triton import generate, supports
from braze.codegen.triton.source import launches as launches_of
from braze.codegen.triton.tiling import plan_tiling
from braze.ir.kernels.kernel import DeviceFunction, Launch
from braze.ir.kernels.loops import Buffer
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.rewrite.complex_as_pairs import complex_as_pairs
from braze.schedule import CUDA, Target, schedule
from braze.tracing import Tracer

Tensor = torch.Tensor
_WARM_UP_S = 0.04  # of replays before any is timed: clocks rise under load
_CACHES = 4  # the sets of buffers together, in second-level caches


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """A case's schedule and launches; places: of its inputs among the case's."""

    plan: Schedule
    launches: tuple[Launch, ...]
    places: tuple[int, ...]


def trace(case: Case, target: Target = CUDA) -> tuple[Schedule, tuple[int, ...]]:
    """The case's schedule for a GPU, by another target's rules where one is given."""
    options = Options()
    tracer = Tracer(replayable=False)
    given = case.inputs("cpu", empty=True)
    with torch.no_grad(), tracer:
        fakes = [tracer.add_input(x) for x in given]
        results = case.function(*fakes)
        finished = tracer.finish(list(results) if isinstance(results, tuple) else [results])
    graph = complex_as_pairs(finished.graph, ("cpu",))  # where the tensors of the trace are
    program = lower(rewrite(graph, options), options, supports)
    return schedule(program, options, target), tuple(finished.inputs)


def planned(case: Case, target: Target = CUDA) -> Planned | None:
    """The case with the cost model's block sizes; None where a part of it is left to ATen."""
    plan, places = trace(case, target)
    if any(isinstance(step, ExternStep) for step in plan.steps):
        return None
    launches = tuple([x for step in generate(plan, Options()).launches for x in step])
    return Planned(plan, launches, places)


# --- building --------------------------------------------------------------------------------


def build(function: DeviceFunction) -> Any:
    """The compiled function; Triton keeps it on disk."""
    folder = Path(tempfile.gettempdir()) / "braze_kernels_gpu"
    folder.mkdir(exist_ok=True)
    path = folder / f"{function.name}.py"
    if not path.exists():
        path.write_text(function.text)
    spec = importlib.util.spec_from_file_location(function.name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    jit = getattr(module, function.name)
    constants = [n for n, kind in enumerate(function.signature) if kind == "constexpr"]
    source = ASTSource(
        jit,
        dict(zip(jit.arg_names, function.signature, strict=True)),
        {(n,): value for n, value in zip(constants, function.constants, strict=True)},
        {(n,): [["tt.divisibility", 16]] for n in function.aligned},
    )
    options = {"num_warps": function.warps, "num_stages": function.stages}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def build_all(functions: Sequence[DeviceFunction], jobs: int) -> None:
    """Fill Triton's cache by several processes."""
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        list(pool.map(_built, functions))


def _built(function: DeviceFunction) -> None:
    build(function)


# --- running ---------------------------------------------------------------------------------


class Prepared:
    """Launches with their compiled functions, over one set of buffers."""

    def __init__(self, case: Case, work: Planned, seed: int) -> None:
        torch.manual_seed(seed)
        self.given = case.inputs("cuda")
        memory: dict[Buffer, Tensor] = {}
        for buffer, place in zip(work.plan.inputs, work.places, strict=True):
            memory[buffer] = self.given[place]
        memory.update({b: t.cuda() for b, t in work.plan.constants})
        self.calls = []
        for launch in work.launches:
            arguments = []
            for argument in launch.arguments:
                assert isinstance(argument, Buffer)
                if argument not in memory:
                    memory[argument] = _poisoned(argument)
                arguments.append(memory[argument])
            grid = tuple(int(size) for size in launch.grid)
            self.calls.append((build(launch.function)[grid], arguments, launch.function.constants))
        self.outputs = [
            torch.as_strided(memory[v.buffer], v.shape, v.stride, v.offset)  # type: ignore[arg-type]
            for v in work.plan.outputs
        ]

    def run(self) -> None:
        """Every launch."""
        for call, arguments, constants in self.calls:
            call(*arguments, *constants)


class Called:
    """As `Prepared`, of the compiled function."""

    def __init__(self, case: Case, compiled: Callable[..., Any], seed: int) -> None:
        torch.manual_seed(seed)
        self.given = case.inputs("cuda")
        self._function = compiled
        self.calls: list[Any] = []
        self.run()

    def run(self) -> None:
        """A call."""
        with torch.no_grad():
            self.outputs = _listed(self._function(*self.given))


def _poisoned(buffer: Buffer) -> Tensor:
    size = 1 + sum((n - 1) * s for n, s in zip(buffer.shape, buffer.stride))  # type: ignore[operator]
    storage = torch.full((max(size, 1),), 77, device="cuda").to(buffer.dtype)
    return storage.as_strided(buffer.shape, buffer.stride)  # type: ignore[arg-type]


def measure(runs: Sequence[Callable[[], Any]]) -> float:
    """Microseconds of one run: the median of replays of a graph of them all."""
    for run in runs:
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    rounds = max(1, 12 // len(runs))
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for run in runs:
                run()
    warm = time.perf_counter() + _WARM_UP_S
    while time.perf_counter() < warm:
        graph.replay()
        torch.cuda.synchronize()
    times = []
    for _ in range(15):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / (rounds * len(runs)))
    del graph
    return statistics.median(times)


def copy_bandwidth() -> float:
    """Bytes a microsecond that a copy reads and writes."""
    pairs = [[torch.randn(2**26, device="cuda") for _ in range(2)] for _ in range(3)]
    time = measure([lambda p=pair: p[0].copy_(p[1]) for pair in pairs])  # type: ignore[misc]
    return 2 * pairs[0][0].nbytes / time


# --- one case --------------------------------------------------------------------------------


def moved(case: Case, outputs: Sequence[Tensor]) -> int:
    """Bytes of inputs and outputs, broadcast dimensions once."""
    return sum(x.untyped_storage().nbytes() for x in [*case.inputs("cpu", empty=True)]) + sum(
        x.numel() * x.element_size() for x in outputs
    )


def errors(case: Case, prepared: Prepared | Called) -> tuple[float, float]:
    """The largest relative error of any output: ours, eager's, against float64."""
    exact = [_widened(x) for x in prepared.given]
    wanted = _listed(case.function(*exact))
    eager = _listed(case.function(*prepared.given))
    prepared.run()
    torch.cuda.synchronize()
    mine = max(_distance(x, y) for x, y in zip(prepared.outputs, wanted, strict=False))
    theirs = max(_distance(x, y) for x, y in zip(eager, wanted, strict=True))
    return mine, theirs


def _widened(x: Tensor) -> Tensor:
    if x.is_complex():
        return x.to(torch.complex128)
    return x.double() if x.is_floating_point() else x


def _listed(results: Any) -> list[Tensor]:
    return list(results) if isinstance(results, (tuple, list)) else [results]


def _distance(x: Tensor, exact: Tensor) -> float:
    if not x.is_floating_point():
        return 0.0 if torch.equal(x, exact) else math.inf
    gap = (x.double() - exact.double()).norm() / exact.double().norm()
    return math.inf if math.isnan(gap.item()) else gap.item()


def sets_of(case: Case, work: Planned | None) -> tuple[list[Any], int]:
    """Sets of buffers, together several times the second-level cache; and the bytes of one."""
    compiled = braze.compile(case.function, mode="default") if work is None else None

    def made(seed: int) -> Prepared | Called:
        if work is None:
            assert compiled is not None
            return Called(case, compiled, seed)
        return Prepared(case, work, seed)

    first = made(0)
    size = moved(case, first.outputs)
    cache = torch.cuda.get_device_properties().L2_cache_size
    count = max(2, -(-_CACHES * cache // size))
    return [first, *map(made, range(1, count))], size


def compiled_time(case: Case, sets: Sequence[Any]) -> float | None:
    """Microseconds of torch.compile's; None where it fails."""
    compiled = torch.compile(case.function, dynamic=False)
    try:
        with torch.no_grad():
            return measure([lambda s=s: compiled(*s.given) for s in sets])  # type: ignore[misc]
    except Exception as error:  # a peer's failure is a gap in the table
        print(f"torch.compile failed on {case.name}: {error!r}"[:300])
        return None


def run_case(
    case: Case, work: Planned | None, copy: float, with_peer: bool = False
) -> dict[str, Any]:
    """The case's row of the table."""
    sets, size = sets_of(case, work)
    first = sets[0]
    mine, theirs = errors(case, first)
    ours = measure([s.run for s in sets])
    peer = compiled_time(case, sets) if with_peer else None
    eager = measure([lambda s=s: case.function(*s.given) for s in sets])  # type: ignore[misc]
    parts = []
    if len(first.calls) > 1:
        for n in range(len(first.calls)):
            single = [lambda c=s.calls[n]: c[0](*c[1], *c[2]) for s in sets]  # type: ignore[misc]
            parts.append(round(measure(single), 1))
    return {
        "case": case.name,
        "us": round(ours, 2),
        "eager_us": round(eager, 2),
        "compiled_us": peer and round(peer, 2),
        "mb": round(size / 1e6, 1),
        "share": round(size / ours / copy, 3),
        "eager_share": round(size / eager / copy, 3),
        "compiled_share": peer and round(size / peer / copy, 3),
        "goal": case.goal,
        "error": mine,
        "eager_error": theirs,
        "kernels": parts or [round(ours, 1)],
    }


def tuned(case: Case, plan: Schedule) -> list[tuple[str, tuple[Launch, ...]]]:
    """Launches with other block sizes for the case's first kernel."""
    kernel = next(step for step in plan.steps if not isinstance(step, ExternStep))
    base = plan_tiling(kernel, plan.device)
    found = []
    blocks = [d.block for d in base.dimensions]
    for change in itertools.product((0.5, 1, 2), repeat=sum(b > 1 for b in blocks)):
        factors = iter(change)
        sizes = [int(b * next(factors)) if b > 1 else b for b in blocks]
        held = any(d.name == "r" and not d.walked for d in base.dimensions)
        if held and sizes[-1] != blocks[-1]:
            continue
        walks = any(d.walked for d in base.dimensions)
        choices = {max(1, base.warps // 2), base.warps, min(32, base.warps * 2)}
        walks = walks or base.together > 1
        for warps, stages in itertools.product(choices, (1, 2, 3) if walks else (1,)):
            dimensions = tuple(
                dataclasses.replace(d, block=b) for d, b in zip(base.dimensions, sizes)
            )
            tiling = dataclasses.replace(base, dimensions=dimensions, warps=warps, stages=stages)
            launches = tuple([x for step in launches_of(plan, {kernel: tiling}) for x in step])
            found.append((f"{sizes} w{warps} s{stages}", launches))
    return found


def tune_case(case: Case, work: Planned, copy: float) -> list[tuple[float, str]]:
    """Shares of the copy's bandwidth by block sizes, best first."""
    rows = []
    for label, launches in tuned(case, work.plan):
        variant = dataclasses.replace(work, launches=launches)
        try:
            sets, size = sets_of(case, variant)
        except OutOfResources:
            continue
        rows.append((round(size / measure([s.run for s in sets]) / copy, 3), label))
        del sets
    return sorted(rows, reverse=True)


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """The table."""
    for row in rows:
        mark = " " if row["share"] >= row["goal"] else "*"
        wrong = "" if row["error"] <= 2 * row["eager_error"] + 1e-7 else "  WRONG"
        print(
            f"{mark} {row['case']:28} {row['us']:9.1f} us  {row['share']:.3f} of copy  eager "
            f"{row['eager_us']:9.1f} ({row['eager_share']:.3f})  torch.compile "
            f"{row['compiled_us'] or 0:9.1f} ({row['compiled_share'] or 0:.3f})  "
            f"error {row['error']:.1e} "
            f"({row['eager_error']:.1e}){wrong}  {row['kernels']}"
        )


def main() -> None:
    """Build, check, time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--json", default="")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--build", action="store_true", help="only build, which needs no GPU")
    parser.add_argument("--alone", action="store_true", help="without torch.compile")
    parser.add_argument("--jobs", type=int, default=12)
    chosen = parser.parse_args()
    wanted = [name for name in chosen.only.split(",") if name]
    every = [c for c in cases() if not wanted or any(name in c.name for name in wanted)]
    works = {case.name: planned(case) for case in every}
    found = {name: work for name, work in works.items() if work is not None}
    functions = {x.function for work in found.values() for x in work.launches}
    if chosen.tune:
        for case in every:
            if case.name not in found:
                continue
            variants = tuned(case, found[case.name].plan)
            functions |= {x.function for _, launches in variants for x in launches}
    build_all(sorted(functions, key=lambda f: f.name), chosen.jobs)
    print(f"{len(functions)} functions built")
    if chosen.build:
        return
    copy = copy_bandwidth()
    print(f"copy: {copy / 1e3:.0f} GB/s")
    rows = []
    for case in every:
        try:
            rows.append(run_case(case, works[case.name], copy, not chosen.alone))
        except Exception as error:  # one case must not cost the others their device time
            print(f"FAILED {case.name}: {error!r}"[:400])
            continue
        print_rows(rows[-1:])
        if chosen.tune and case.name in found:
            print("   ", tune_case(case, found[case.name], copy)[:6])
        sys.stdout.flush()
    if chosen.json:
        head = {
            "date": datetime.datetime.now().isoformat(timespec="minutes"),
            "card": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "copy_gb_s": round(copy / 1e3),
        }
        Path(chosen.json).parent.mkdir(parents=True, exist_ok=True)
        Path(chosen.json).write_text(json.dumps({**head, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
