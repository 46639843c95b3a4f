"""Single kernels on the CPU: Braze's beside eager's and torch.compile's, and the memory's floor.

    python benchmarks/kernels_cpu.py [--threads 2] [--rounds 15] [--only softmax] [--no-peer]

Each round times every system once, one after the other; the table shows medians of the rounds'
ratios, so that a disturbance hits all systems alike.
"""

from __future__ import annotations

import argparse
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from braze.codegen.cpp import generate
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.runtime.launch.cpp_compiler import NoCompiler
from braze.runtime.link.link_cpu import link
from braze.schedule import schedule
from braze.tracing import Tracer

Tensor = torch.Tensor


@dataclass(frozen=True, slots=True)
class Case:
    """function and its inputs; moved: bytes that it must read and write at least."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    moved: int


def cases(dtype: torch.dtype) -> list[Case]:
    """The kernels of the table in one dtype."""
    torch.manual_seed(0)
    return [*_row_cases(dtype), *_reductions(dtype), *_layout_cases(dtype)]


def _row_cases(dtype: torch.dtype) -> list[Case]:
    rows, other = torch.randn(4096, 768, dtype=dtype), torch.randn(4096, 768, dtype=dtype)
    wide = torch.randn(4096, 1000, dtype=dtype)
    weight, bias = torch.randn(768, dtype=dtype), torch.randn(768, dtype=dtype)
    two = 2 * rows.nbytes

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.layer_norm(x, (768,), w, b)

    return [
        Case("softmax", lambda x: F.softmax(x, -1), (wide,), 2 * wide.nbytes),
        Case("layer norm", norm, (rows, weight, bias), two),
        Case(
            "add + layer norm",
            lambda x, y, w, b: norm(x + y, w, b),
            (rows, other, weight, bias),
            3 * rows.nbytes,
        ),
        Case("bias + gelu", lambda x, b: F.gelu(x + b), (rows, bias), two),
        Case("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), (rows,), two),
        Case("silu * up", lambda x, y: F.silu(x) * y, (rows, other), 3 * rows.nbytes),
    ]


def _reductions(dtype: torch.dtype) -> list[Case]:
    rows = torch.randn(4096, 768, dtype=dtype)
    return [
        Case("sum rows", lambda x: x.sum(1), (rows,), rows.nbytes),
        Case("sum columns", lambda x: x.sum(0), (rows,), rows.nbytes),
        Case("sum all", lambda x: x.sum(), (rows,), rows.nbytes),
        Case("argmax", lambda x: x.argmax(1), (rows,), rows.nbytes),
    ]


def _layout_cases(dtype: torch.dtype) -> list[Case]:
    image = torch.randn(32, 64, 56, 56, dtype=dtype)
    square, other = torch.randn(2048, 2048, dtype=dtype), torch.randn(2048, 2048, dtype=dtype)
    heads = torch.randn(8, 12, 512, 64, dtype=dtype)
    mean, variance = torch.zeros(64, dtype=dtype), torch.ones(64, dtype=dtype)
    return [
        Case("transpose + add", lambda x, y: x.t() + y, (square, other), 3 * square.nbytes),
        Case(
            "heads to rows",
            lambda x: x.transpose(1, 2).reshape(8, 512, 768) * 2,
            (heads,),
            2 * heads.nbytes,
        ),
        Case(
            "batch norm, relu",
            lambda x, m, v: F.relu(F.batch_norm(x, m, v)),
            (image, mean, variance),
            2 * image.nbytes,
        ),
        Case("max pool", lambda x: F.max_pool2d(x, 3, 2, 1), (image,), image.nbytes * 5 // 4),
        Case("tiny add, mul", lambda x: (x + 1) * 2, (torch.randn(8, dtype=dtype),), 0),
    ]


def compile_case(case: Case, options: Options) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """The case through trace, lowering, schedule, generation and build."""
    tracer = Tracer()
    with torch.no_grad(), tracer:
        fakes = [tracer.add_input(x) for x in case.inputs]
        finished = tracer.finish([case.function(*fakes)])
    program = lower(rewrite(finished.graph, options), options)
    plan = schedule(program, options)
    linked = link(plan, generate(plan, options), options)
    if isinstance(linked, NoCompiler):
        raise SystemExit(linked.reason)
    inputs = [case.inputs[n] for n in finished.inputs]
    return lambda _: linked(inputs)


def bandwidth() -> float:
    """Bytes a second of a plain copy of 256 MiB, read and write counted."""
    source = torch.ones(1 << 26)
    target = torch.empty_like(source)
    times = [_seconds(lambda: target.copy_(source), 1) for _ in range(7)]
    return 2 * source.nbytes / min(times)


def measure(case: Case, options: Options, rounds: int, peer: bool, best: bool) -> list[str]:
    """One row of the table."""
    ours = compile_case(case, options)
    systems: list[Callable[[], Any]] = [
        lambda: ours(case.inputs),
        lambda: case.function(*case.inputs),
    ]
    if peer:
        torch._dynamo.reset()
        compiled = torch.compile(case.function)
        systems.append(lambda: compiled(*case.inputs))
    for system in systems:
        system()
    count = max(1, int(0.01 / max(_seconds(systems[1], 2), 1e-7)))
    times: list[list[float]] = [[] for _ in systems]
    for _ in range(rounds):
        for taken, system in zip(times, systems):
            taken.append(_seconds(system, count))
    middle = min if best else statistics.median
    median = middle(times[0])
    ratios = [
        min(taken) / median if best else statistics.median(map(operator.truediv, taken, times[0]))
        for taken in times[1:]
    ]
    row = [case.name, f"{median * 1e6:.1f}", *(f"{ratio:.2f}x" for ratio in ratios)]
    return [*row, f"{case.moved / median / 1e9:.1f}" if case.moved else "-"]


def main() -> None:
    """Print the table for float32 and bfloat16."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--best", action="store_true", help="least times, for a busy machine")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    options = Options()
    print(f"copy: {bandwidth() / 1e9:.1f} GB/s with {arguments.threads} threads")
    head = ["kernel", "braze us", "vs eager", "vs torch.compile", "GB/s"]
    if arguments.no_peer:
        head.pop(3)
    with torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            print(f"\n{dtype!s:24}" + "".join(f"{name:>18}" for name in head[1:]))
            for case in cases(dtype):
                if arguments.only in case.name:
                    row = measure(
                        case, options, arguments.rounds, not arguments.no_peer, arguments.best
                    )
                    print(f"{row[0]:24}" + "".join(f"{cell:>18}" for cell in row[1:]), flush=True)


def _seconds(function: Callable[[], Any], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        function()
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main()
