"""Random fused programs: compiled against eager and against the evaluator of loops.

BRAZE_FUZZ_PROGRAMS says how many programs are run, BRAZE_FUZZ_SEED the first one's seed; a failure
prints the program and its seed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

import pytest
import torch

from braze.codegen.cpp import generate, supports
from braze.ir.graphs.verify_graph import verify_graph
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.verify_loops import verify_loops
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.runtime.link.link_cpu import link
from braze.schedule import schedule
from braze.tracing import Tracer
from tests.differential.fusion_programs import Program, make_program

COUNT = int(os.environ.get("BRAZE_FUZZ_PROGRAMS", "60"))
FIRST = int(os.environ.get("BRAZE_FUZZ_SEED", "0"))
TOLERANCES = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (6e-2, 6e-2)}


def run_compiled(program: Program) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """What the kernels return, and what the evaluator of the same loops returns."""
    options = config.snapshot()
    tracer = Tracer()
    with tracer:
        fakes = [tracer.add_input(x) for x in program.inputs]
        results = program(*fakes)
    finished = tracer.finish(results)
    kept = [tracer.inputs[place][1] for place in finished.inputs]
    graph = rewrite(finished.graph, options)
    verify_graph(graph)
    loops = lower(graph, options, supports)
    verify_loops(loops)
    plan = schedule(loops, options)
    function = link(plan, generate(plan, options), options)
    count = len(results)  # behind them come the bases that several results are views of
    return function(kept)[:count], run_loops(loops, kept)[:count]  # type: ignore[operator]


def differences(have: Sequence[torch.Tensor], want: Sequence[torch.Tensor], rounded: bool) -> str:
    """What differs, or nothing. rounded: a value of bfloat16 lies behind the results."""
    for place, (one, other) in enumerate(zip(have, want, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            return f"result {place}: {one.dtype}{one.shape}, not {other.dtype}{other.shape}"
        pairs = zip(other.shape, one.stride(), other.stride(), strict=True)
        if other.numel() and any(n > 1 and a != b for n, a, b in pairs):
            return f"result {place}: strides {one.stride()}, not {other.stride()}"
        if not other.is_floating_point():
            if not torch.equal(one, other):
                return f"result {place}: {(one != other).sum()} of {other.numel()} differ"
            continue
        dtype = torch.bfloat16 if rounded else other.dtype
        relative, absolute = TOLERANCES[dtype]
        finite = other[other.isfinite()]
        absolute *= max(1.0, finite.abs().max().item() if finite.numel() else 0.0)
        if not torch.allclose(one, other, relative, absolute, equal_nan=True):
            return f"result {place}: {(one.double() - other.double()).abs().max()} apart"
    return ""


@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
def test_random_program(seed: int) -> None:
    program = make_program(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = program(*program.inputs)
        compiled, evaluated = run_compiled(program)
    rounded = "bfloat16" in str(program)
    found = differences(compiled, evaluated, rounded)
    assert not found, f"compiled against the evaluator: {found}\nseed {seed}\n{program}"
    found = differences(compiled, wanted, rounded)
    assert not found, f"compiled against eager: {found}\nseed {seed}\n{program}"
