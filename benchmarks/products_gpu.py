"""Products of matrices with what follows them: cuBLAS and a kernel, beside one kernel of ours.

    python -m benchmarks.products_gpu [--only bert]

Sizes of BERT-base, GPT-2 and a Llama-type model. Both ways are replayed as CUDA graphs over random
numbers, several sets of buffers in turn; of ours, every block size is timed. "tuned" is compiled
with `mode="max-autotune-no-cudagraphs"`, by its own timings. Errors are against float64.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

import braze
from benchmarks.kernels_gpu import Planned as PlannedLaunches
from benchmarks.kernels_gpu import Prepared, build_all, measure
from benchmarks.kernels_gpu_cases import Case, Input
from braze.codegen.triton import kernel_alternatives, supports
from braze.ir.kernel import Launch
from braze.ir.loops import ExternCall
from braze.ir.schedule import Kernel, Schedule
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.schedule import CUDA, schedule
from braze.standins import Tracer

_SETS = 3


def _gelu(x: Any, w: Any, b: Any) -> Any:
    return F.gelu(F.linear(x, w, b))


def _residual(x: Any, w: Any, b: Any, y: Any) -> Any:
    return F.linear(x, w, b) + y


def _scaled(x: Any, y: Any) -> Any:
    return torch.bmm(x, y.transpose(1, 2)) * 0.125


def _gated(x: Any, w: Any, g: Any) -> Any:
    return F.silu(F.linear(x, w)) * g


def _half(*shapes: tuple[int, ...], dtype: torch.dtype = torch.bfloat16) -> tuple[Input, ...]:
    return tuple([Input(shape, dtype) for shape in shapes])


CASES = (
    Case("bert, gelu", _gelu, _half((8192, 768), (3072, 768), (3072,))),
    Case("bert, residual", _residual, _half((8192, 3072), (768, 3072), (768,), (8192, 768))),
    Case(
        "gpt2, gelu tanh",
        lambda x, w, b: F.gelu(torch.addmm(b, x, w), approximate="tanh"),
        _half((4096, 768), (768, 3072), (3072,)),
    ),
    Case("llama, silu gate", _gated, _half((4096, 1024), (2816, 1024), (4096, 2816))),
    Case("llama 7b, silu gate", _gated, _half((4096, 4096), (11008, 4096), (4096, 11008))),
    Case("scores, scaled", _scaled, _half((96, 512, 64), (96, 512, 64))),
    Case(
        "small, relu",
        lambda x, w, b: F.relu(F.linear(x, w, b)),
        _half((256, 512), (512, 512), (512,)),
    ),
    Case(
        "float32, gelu",
        _gelu,
        _half((2048, 768), (3072, 768), (3072,), dtype=torch.float32),
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A case's kernel of both, and what is there without it."""

    fused: Kernel
    call: ExternCall
    rest: Kernel
    plan: Schedule
    places: tuple[int, ...]


def found_in(case: Case) -> Found:
    """The product of a case, as the schedule finds it."""
    options, seen = Options(), []
    tracer = Tracer(replayable=False)
    given = case.inputs("cpu", empty=True)
    with torch.no_grad(), tracer:
        finished = tracer.finish([case.function(*[tracer.add_input(x) for x in given])])
    program = lower(rewrite(finished.graph, options), options, supports)

    def choose(fused: Kernel, call: ExternCall, rest: Kernel) -> bool:
        seen.append((fused, call, rest))
        return True

    plan = schedule(program, options, CUDA, choose)
    ((fused, call, rest),) = seen
    return Found(fused, call, rest, plan, tuple(finished.inputs))


def our_time(case: Case, found: Found, launch: Launch) -> tuple[float, float]:
    """Microseconds and error of one way to launch the kernel."""
    work = PlannedLaunches(found.plan, (launch,), found.places)
    sets = [Prepared(case, work, n) for n in range(_SETS)]
    time = measure([s.run for s in sets])
    (mine,) = sets[0].outputs
    return time, _error(case, sets[0].given, mine)


def _error(case: Case, given: list[torch.Tensor], result: torch.Tensor) -> float:
    exact = case.function(*[x.double() for x in given])
    return float((result.double() - exact).norm() / exact.norm())


def library_times(case: Case, compiled: Callable[..., Any]) -> tuple[float, float]:
    """Microseconds of a call that leaves the product to the library, and its error."""
    sets = []
    for seed in range(_SETS):
        torch.manual_seed(seed)
        sets.append(case.inputs("cuda"))
    with torch.no_grad():
        result = compiled(*sets[0])
        time = measure([lambda s=s: compiled(*s) for s in sets])  # type: ignore[misc]
    return time, _error(case, sets[0], result)


def run_case(case: Case, ways: Mapping[str, Any], found: Found) -> None:
    """Print the case's row."""
    braze_time, braze_error = library_times(case, braze.compile(case.function, mode="default"))
    eager_time, _ = library_times(case, case.function)
    tuned = braze.compile(case.function, mode="max-autotune-no-cudagraphs")
    tuned_time, tuned_error = library_times(case, tuned)
    rows = []
    for name, launch in ways.items():
        try:
            rows.append((*our_time(case, found, launch), name))
        except Exception as error:  # too many registers, or too much shared memory
            print(f"  {name}: {error!r}"[:160])
    time, error, name = min(rows)
    every = [round(row[0], 1) for row in rows]
    print(
        f"{case.name:22} eager {eager_time:8.1f}  cuBLAS and a kernel {braze_time:8.1f} "
        f"({braze_error:.1e})  ours {time:8.1f} ({error:.1e}) by {name}  "
        f"{braze_time / time:.2f}x  tuned {tuned_time:8.1f} ({tuned_error:.1e})  all {every}",
        flush=True,
    )


def main() -> None:
    """Build all, then time."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=12)
    chosen = parser.parse_args()
    wanted = [c for c in CASES if chosen.only in c.name]
    found = {case.name: found_in(case) for case in wanted}
    ways = {
        name: {
            f"{x.function.constants} w{x.function.warps} {x.function.name[-4:]}": x
            for x in kernel_alternatives(f.fused, Options())
        }
        for name, f in found.items()
    }
    functions = {x.function for by in ways.values() for x in by.values()}
    build_all(sorted(functions, key=lambda f: f.name), chosen.jobs)
    for case in wanted:
        run_case(case, ways[case.name], found[case.name])


if __name__ == "__main__":
    main()
