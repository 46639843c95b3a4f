"""Random fused programs by Triton's interpreter (on a GPU where there is one), for the schedule of
a GPU and for one that splits, merges and walks small tensors as it would large ones."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from braze.codegen.triton import supports
from braze.ir.kernels.run_loops import run_loops
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.schedule import CUDA
from braze.tracing import Tracer
from tests.differential.fusion_programs import make_program
from tests.differential.test_fusion_fuzz import differences
from tests.unit.codegen.triton_running import MARKS, run

COUNT = int(os.environ.get("BRAZE_FUZZ_PROGRAMS", "12"))
SMALL = replace(CUDA, least_work=200, least_part=16, merges_columns=2, few_rows=2, enough_tasks=4)
HALVES = (torch.bfloat16, torch.float16)

pytestmark = MARKS


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_program(seed: int) -> None:
    program, options, tracer = make_program(seed), config.snapshot(), Tracer()
    with tracer:
        fakes = [tracer.add_input(x) for x in program.inputs]
        results = program(*fakes)
    finished = tracer.finish(results)
    kept = [tracer.inputs[place][1] for place in finished.inputs]
    loops = lower(rewrite(finished.graph, options), options, supports)
    want = run_loops(loops, kept)
    for target in (CUDA, SMALL):
        have = run(loops, kept, target)
        difference = differences(have, want, any(x.dtype in HALVES for x in (*have, *kept)))
        assert not difference, f"{difference}\n{program}"
