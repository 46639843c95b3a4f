"""Random programs of scatters (`scatter_programs`): results, arguments that were written to, and
which result is an argument, as in eager.

    BRAZE_SCATTER_PROGRAMS=1000 python -m pytest -n auto tests/differential/test_scatter_programs.py

On the CPU they are compiled; what a GPU would run is run by the evaluator of loops and by Triton's
interpreter.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import braze
from braze.codegen.triton import generate, supports
from braze.ir.kernels.run_loops import run_loops
from braze.lower import lower
from braze.rewrite import rewrite
from braze.schedule import CUDA, schedule
from braze.tracing import Tracer
from tests.differential.scatter_programs import ScatterProgram, scatter_program
from tests.recorded import recorded
from tests.unit.codegen.triton_running import HAS_TRITON, OPTIONS, interpreting, run_sources

PROGRAMS = int(os.environ.get("BRAZE_SCATTER_PROGRAMS", "20"))
_A_TEST = 5
SIZES = ((5, 8, 200), (4, 6, 256))
SMALL = ((5, 8), (4, 6))
OPTIONS_OF_PROGRAMS = {"suppress_errors": False, "verify": True}


def outcome(
    run: Callable[..., Sequence[torch.Tensor]], program: ScatterProgram
) -> tuple[list[torch.Tensor], list[tuple[int, int]]]:
    """Results and arguments behind a call, and which result is in the memory of which argument."""
    given = program.arguments()
    results = run(*given)
    memory = [x.data_ptr() for x in given]
    shared = [
        (n, memory.index(x.data_ptr())) for n, x in enumerate(results) if x.data_ptr() in memory
    ]
    return [*results, *given], shared


def are_equal(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.mark.parametrize("start", range(0, PROGRAMS, _A_TEST))
def test_scatter_programs(start: int) -> None:
    for seed in range(start, start + _A_TEST):
        program = scatter_program(seed, SIZES)
        function = program.function()
        expected, shared = outcome(function, program)
        with recorded() as journal:
            compiled = braze.compile(function, options=OPTIONS_OF_PROGRAMS)
            for _ in range(2):
                found, shared_here = outcome(compiled, program)
                assert are_equal(found, expected), f"seed {seed}\n{program.source}"
                assert shared_here == shared, f"seed {seed}\n{program.source}"
        assert not journal.fallbacks(), f"seed {seed}\n{program.source}"


@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
@pytest.mark.xdist_group("triton")
@pytest.mark.parametrize("start", range(0, PROGRAMS, _A_TEST))
def test_scatter_programs_in_triton(start: int) -> None:
    with interpreting():
        for seed in range(start, start + _A_TEST):
            program = scatter_program(seed, SMALL)
            expected, _ = outcome(program.function(), program)
            for run in (_evaluated, _interpreted):
                found, _ = outcome(functools.partial(run, program), program)
                assert are_equal(found, expected), f"{run.__name__}, seed {seed}\n{program.source}"


def _lowered(program: ScatterProgram) -> tuple[Any, tuple[int, ...], int]:
    """The program's loops for a GPU, the numbers of the arguments that they read, and how many of
    their results are the program's."""
    tracer, given = Tracer(replayable=False), program.arguments()
    with torch.no_grad(), tracer:
        results = program.function()(*[tracer.add_input(x) for x in given])
        finished = tracer.finish(list(results))
    return lower(rewrite(finished.graph, OPTIONS), OPTIONS, supports), finished.inputs, len(results)


def _evaluated(program: ScatterProgram, *given: torch.Tensor) -> list[torch.Tensor]:
    loops, inputs, count = _lowered(program)
    return list(run_loops(loops, [given[n] for n in inputs]))[:count]


def _interpreted(program: ScatterProgram, *given: torch.Tensor) -> list[torch.Tensor]:
    loops, inputs, count = _lowered(program)
    plan = schedule(loops, OPTIONS, CUDA)
    sources = generate(plan, OPTIONS)
    return list(run_sources(loops, plan, sources, [given[n] for n in inputs]))[:count]
