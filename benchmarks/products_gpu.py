"""Products of matrices and convolutions with what makes their operands and what follows them:
cuBLAS, cuDNN and kernels, beside one kernel of ours.

    python -m benchmarks.products_gpu [--only bert,bytes,conv] [--brief] [--peer]

Sizes of BERT-base, GPT-2 and Llama-type models, of ResNet-50 (32 images) and DenseNet-121 (16). All
ways are replayed as CUDA graphs over random numbers, sets of buffers in turn that are four times
the second-level cache together. Of ours, every way and block size is timed (--brief: none). "tuned"
is compiled with `mode="max-autotune-no-cudagraphs"`, by its own timings; --peer: so does
torch.compile. The floor is each input read once and each output written once at the rate of a copy.
Errors are against float64.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

import braze
from benchmarks.kernels_gpu import Planned as PlannedLaunches
from benchmarks.kernels_gpu import Prepared, build_all, copy_bandwidth, measure, moved
from benchmarks.kernels_gpu_cases import Case, Input
from braze.codegen.triton import kernel_alternatives, supports
from braze.ir.kernels.kernel import Launch
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.schedule import CUDA, schedule
from braze.tracing import Tracer

_SETS = 3  # at least
_SET_BYTES = 240 << 20  # of all sets together, at least
_MOST_SETS = 64


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


def _scaled_rows(x: Any, w: Any, s: Any) -> Any:
    """A weight of bytes, a scale for each of its rows."""
    return F.linear(x, w.to(x.dtype) * s[:, None])


def _scaled_all(x: Any, w: Any, s: Any) -> Any:
    return F.linear(x, w.to(x.dtype) * s)


def _bytes(m: int, n: int, k: int) -> tuple[Input, ...]:
    return (Input((m, k)), Input((n, k), torch.int8, 127), Input((n,)))


def _gated_pair(a: Any, b: Any, w: Any) -> Any:
    return (F.silu(a) * b) @ w


EPILOGUES = (
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

PROLOGUES = (
    Case("bytes, 1 x 4096 x 4096", _scaled_rows, _bytes(1, 4096, 4096)),
    Case("bytes, 16 x 4096 x 4096", _scaled_rows, _bytes(16, 4096, 4096)),
    Case("bytes, 1 x 11008 x 4096", _scaled_rows, _bytes(1, 11008, 4096)),
    Case("bytes, 1 x 4096 x 11008", _scaled_rows, _bytes(1, 4096, 11008)),
    Case(
        "bytes of columns, 8 x 4096 x 4096",
        lambda x, w, s: x @ (w.to(x.dtype) * s),
        (Input((8, 4096)), Input((4096, 4096), torch.int8, 127), Input((4096,))),
    ),
    Case("bytes, 2048 x 4096 x 4096", _scaled_rows, _bytes(2048, 4096, 4096)),
    Case(
        "float8, 1 x 4096 x 4096",
        _scaled_all,
        (Input((1, 4096)), Input((4096, 4096), torch.float8_e4m3fn), Input(())),
    ),
    Case(
        "master weight, 16 x 4096 x 4096",
        lambda x, w: F.linear(x, w.to(x.dtype)),
        (Input((16, 4096)), Input((4096, 4096), torch.float32)),
    ),
    Case(
        "x.float() @ w, 64 x 4096 x 1024",
        lambda x, w: x.to(w.dtype) @ w,
        (Input((64, 4096)), Input((4096, 1024), torch.float32)),
    ),
    Case(
        "gated pair, 4096 x 1024 x 2816",
        _gated_pair,
        _half((4096, 2816), (4096, 2816), (2816, 1024)),
    ),
    Case(
        "gated pair, 8192 x 64 x 4096", _gated_pair, _half((8192, 4096), (8192, 4096), (4096, 64))
    ),
    Case(
        "relu's gradient, 3072 x 768 x 8192",
        lambda h, g: F.relu(h).t() @ g,
        _half((8192, 3072), (8192, 768)),
    ),
)
# Nothing to fuse: without tuning, too, a kernel of ours writes rows that begin anywhere
# (`schedule/matmul/unaligned_gemm.py`).
LOGITS = (
    Case("logits of gpt2", F.linear, _half((4096, 768), (50257, 768))),
    Case("logits of bert", F.linear, _half((8192, 768), (30522, 768), (30522,))),
    Case("logits, 4096 summed", F.linear, _half((4096, 4096), (32001, 4096))),
)


def _convolution(
    images: int, channels: int, made: int, size: int, how: str, dtype: torch.dtype = torch.bfloat16
) -> Case:
    """A convolution of square images with a norm in inference. how: the window's extent, then
    `/2` for steps, `+` for a residual and `<` for a norm and an activation before it."""
    window, step = int(how[0]), 2 if "/2" in how else 1
    before, behind = "<" in how, "+" in how

    def function(x: Any, w: Any, *rest: Any) -> Any:
        norms = [rest[:4], rest[4:8]] if before else [rest[:4]]
        if before:
            x = F.relu(F.batch_norm(x, *norms.pop()))
        y = F.batch_norm(F.conv2d(x, w, stride=step, padding=window // 2), *norms[0])
        return F.relu(y + rest[-1] if behind else y)

    def image(*shape: int) -> Input:
        return Input(shape, dtype, layout=torch.channels_last)

    def norm(count: int) -> tuple[Input, ...]:
        """Mean, variance, weight, bias."""
        plain = Input((count,), dtype)
        return plain, Input((count,), dtype, positive=True), plain, plain

    given = [image(images, channels, size, size), image(made, channels, window, window)]
    given += [*norm(made), *(norm(channels) if before else ())]
    given += [image(images, made, size // step, size // step)] if behind else []
    kind = "" if dtype == torch.bfloat16 else ", float32"
    return Case(f"conv {how} {channels} to {made}, {images} x {size}{kind}", function, tuple(given))


CONVOLUTIONS = (
    _convolution(32, 64, 64, 56, "1"),
    _convolution(32, 64, 64, 56, "3"),
    _convolution(32, 64, 256, 56, "1+"),
    _convolution(32, 256, 64, 56, "1"),
    _convolution(32, 128, 128, 56, "3/2"),
    _convolution(32, 256, 512, 56, "1/2"),
    _convolution(32, 128, 512, 28, "1+"),
    _convolution(32, 512, 128, 28, "1"),
    _convolution(32, 128, 128, 28, "3"),
    _convolution(32, 256, 1024, 14, "1+"),
    _convolution(32, 1024, 256, 14, "1"),
    _convolution(32, 256, 256, 14, "3"),
    _convolution(32, 512, 2048, 7, "1+"),
    _convolution(32, 512, 512, 7, "3"),
    _convolution(16, 96, 128, 56, "1<"),
    _convolution(16, 256, 128, 28, "1<"),
    _convolution(16, 512, 128, 14, "1<"),
    _convolution(32, 64, 64, 56, "3", torch.float32),
    _convolution(32, 64, 256, 56, "1+", torch.float32),
    _convolution(32, 256, 64, 56, "1", torch.float32),
    _convolution(32, 128, 512, 28, "1+", torch.float32),
    _convolution(32, 128, 128, 28, "3", torch.float32),
    _convolution(32, 1024, 256, 14, "1", torch.float32),
    _convolution(16, 256, 128, 28, "1<", torch.float32),
)
CASES = (*EPILOGUES, *PROLOGUES, *LOGITS, *CONVOLUTIONS)


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """The ways to compute a case, the library's first; places: of their inputs among the case's."""

    plans: tuple[Schedule, ...]
    places: tuple[int, ...]

    def launches(self, number: int) -> list[tuple[Launch, ...]]:
        """Those of one of our ways, with each block size of the kernel that multiplies."""
        plan = self.plans[number]
        fixed = [kernel_alternatives(step, Options(), plan.device) for step in _kernels(plan)]
        several = [n for n, step in enumerate(_kernels(self.plans[number])) if step.product]
        first = [ways[0] for ways in fixed if ways]
        if len(first) < len(fixed) or not several:
            return []
        (at,) = several
        return [(*first[:at], launch, *first[at + 1 :]) for launch in fixed[at]]

    def name(self, number: int) -> str:
        """What is in the kernel that multiplies."""
        products = [step.product for step in _kernels(self.plans[number]) if step.product]
        computed = [side for product in products for side in product.computed if side]
        sides = [side for side in computed if not side.gathered]
        return f"{len(_kernels(self.plans[number]))} kernels" + (", fused" if sides else "")


def _kernels(plan: Schedule) -> list[Kernel]:
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    return [step for step in plan.steps if isinstance(step, Kernel)]


def found_in(case: Case) -> Found:
    """The ways of a case's product, as the schedule lists them."""
    options, counts = Options(), []
    tracer = Tracer(replayable=False)
    given = case.inputs("cpu", empty=True)
    with torch.no_grad(), tracer:
        finished = tracer.finish([case.function(*[tracer.add_input(x) for x in given])])
    program = lower(rewrite(finished.graph, options), options, supports)

    def planned(number: int) -> Schedule:
        def choose(ways: Any) -> int:
            counts.append(len(ways))
            return number

        return schedule(program, options, CUDA, choose)

    library = planned(0)
    count = sum(counts)  # of one product; 0: nothing to fuse
    return Found((library, *map(planned, range(1, count))), tuple(finished.inputs))


def sets_of(case: Case) -> int:
    """How many sets of buffers are used in turn."""
    size = sum(x.nbytes for x in case.inputs("cpu", empty=True))
    return min(max(_SETS, math.ceil(_SET_BYTES / size)), _MOST_SETS)


def our_time(
    case: Case, found: Found, number: int, launches: tuple[Launch, ...]
) -> tuple[float, float]:
    """Microseconds and error of one way to launch the kernels."""
    work = PlannedLaunches(found.plans[number], launches, found.places)
    sets = [Prepared(case, work, n) for n in range(sets_of(case))]
    time = measure([s.run for s in sets])
    (mine,) = sets[0].outputs
    return time, _error(case, sets[0].given, mine)


def _error(case: Case, given: list[torch.Tensor], result: torch.Tensor) -> float:
    wide = [x.double() if x.dtype.is_floating_point else x for x in given]
    exact = case.function(*wide)
    return float((result.double() - exact).norm() / exact.norm())


def time_of(case: Case, compiled: Callable[..., Any]) -> tuple[float, float]:
    """Microseconds of a call, and its error."""
    sets = []
    for seed in range(sets_of(case)):
        torch.manual_seed(seed)
        sets.append(case.inputs("cuda"))
    with torch.no_grad():
        result = compiled(*sets[0])
        time = measure([lambda s=s: compiled(*s) for s in sets])  # type: ignore[misc]
    return time, _error(case, sets[0], result)


def peer_time(case: Case) -> float:
    """Microseconds of torch.compile's code in the same mode."""
    torch.compiler.reset()
    return time_of(case, torch.compile(case.function, mode="max-autotune-no-cudagraphs"))[0]


def run_case(case: Case, ways: Mapping[int, list[tuple[Launch, ...]]], found: Found) -> list[str]:
    """The columns of the case's row, behind floor and name."""
    eager_time, eager_error = time_of(case, case.function)
    library_time, _ = time_of(case, braze.compile(case.function, mode="default"))
    tuned = braze.compile(case.function, mode="max-autotune-no-cudagraphs")
    tuned_time, tuned_error = time_of(case, tuned)
    best = []
    for number, choices in ways.items():
        rows = []
        for launches in choices:
            blocks = _blocks(launches)
            try:
                rows.append((*our_time(case, found, number, launches), blocks))
            except Exception as error:  # too many registers, or too much shared memory
                print(f"  {blocks}: {error!r}"[:160])
        if rows:
            time, _, name = min(rows)
            every = " ".join([f"{row[2]} {row[0]:.1f}" for row in sorted(rows)])
            print(f"  {case.name}: {found.name(number)}: {every}", flush=True)
            best.append(f"{time:.1f} ({found.name(number)} {name})")
    errors = f"{tuned_error / eager_error:.2f}"
    times = [f"{x:.1f}" for x in (eager_time, library_time)]
    return [*times, "; ".join(best) or "-", f"{tuned_time:.1f}", errors]


def _blocks(launches: tuple[Launch, ...]) -> str:
    """Of the launch that multiplies: its block, how much it sums at once, its warps, and how many
    blocks are on their way."""
    for launch in launches:
        loop = re.search(
            r"k_start in tl.range\(0, \d+, (\d+), num_stages=(\d+)", launch.function.text
        )
        if loop:
            constants, warps = launch.function.constants, launch.function.warps
            return f"{constants} {loop[1]} w{warps} s{loop[2]}"
    return ""


def _floor(case: Case, rate: float) -> float:
    with torch.device("meta"):
        result = case.function(*[x.to("meta") for x in case.inputs("cpu", empty=True)])
    return moved(case, [result]) / rate


def main() -> None:
    """Build all, then time, then the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="parts of names, with commas between them")
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--brief", action="store_true", help="no block sizes beside the choice")
    parser.add_argument("--peer", action="store_true", help="torch.compile as well")
    chosen = parser.parse_args()
    wanted = [c for c in CASES if any(part in c.name for part in chosen.only.split(","))]
    found = {case.name: found_in(case) for case in wanted}
    ways: dict[str, dict[int, list[tuple[Launch, ...]]]] = {
        name: {} if chosen.brief else {n: f.launches(n) for n in range(1, len(f.plans))}
        for name, f in found.items()
    }
    functions = {
        launch.function
        for by in ways.values()
        for choices in by.values()
        for launches in choices
        for launch in launches
    }
    build_all(sorted(functions, key=lambda f: f.name), chosen.jobs)
    rate = copy_bandwidth()
    head = "| case | floor | eager | untuned | ours | tuned | error / eager's |"
    table = [head, "|---|---|---|---|---|---|---|"]
    for case in wanted:
        cells = [f"{_floor(case, rate):.1f}", *run_case(case, ways[case.name], found[case.name])]
        if chosen.peer:
            cells[-1] += f" | {peer_time(case):.1f}"
        table.append(f"| {case.name} | {' | '.join(cells)} |")
        print(table[-1], flush=True)
    print(f"\ncopy: {rate / 1e6:.2f} TB/s", *table, sep="\n")


if __name__ == "__main__":
    main()
