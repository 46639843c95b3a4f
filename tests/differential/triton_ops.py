"""Lowered operators as Triton kernels: by the interpreter, or on a GPU where there is one.

    python -m tests.differential.triton_ops --dtypes float32,int64 --samples 1 --part 0/12

Each operator of PyTorch's test database, as `lower_ops` checks it, with the kernels in the place
of the loop evaluator. The interpreter truncates where it should round to bfloat16.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from braze.codegen.triton import supports
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.schedule import Kernel
from braze.lower import lower
from braze.options import Options
from tests.differential import lower_ops
from tests.unit.codegen.triton_running import generated, interpreting, run_sources


def run_kernels(program: LoopProgram, inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The program's results; by the loop evaluator where there is nothing but library calls."""
    plan, sources = generated(program)
    if not any(isinstance(step, Kernel) for step in plan.steps):
        return run_loops(program, inputs)
    return run_sources(program, plan, sources, inputs)


def main() -> None:
    """Print what differs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtypes", default="float32,int64,bool")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--part", default="0/1")
    chosen = parser.parse_args()
    number, parts = map(int, chosen.part.split("/"))
    lower_ops.run_loops = run_kernels
    lower_ops.lower = lambda graph, options: lower(graph, Options(), supports)
    outcomes = []
    with interpreting():
        for name, op in list(lower_ops.operators().items())[number::parts]:
            for dtype in (getattr(torch, d) for d in chosen.dtypes.split(",")):
                if dtype in op.supported_dtypes("cpu"):
                    outcomes.append(lower_ops.check_operator(name, op, dtype, chosen.samples))
    for outcome in outcomes:
        if outcome.failure:
            print(f"FAIL {outcome.key}: {outcome.failure}")
    print(f"{len(outcomes)} checked, {sum(bool(o.failure) for o in outcomes)} fail")


if __name__ == "__main__":
    main()
