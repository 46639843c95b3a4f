"""Generated C++ of five small programs, without the prelude; `pytest --bless` rewrites."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from braze.codegen.cpp import generate
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.print_loops import print_loops
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.scalars import apply
from braze.options import config
from braze.schedule import schedule
from tests.conftest import check_golden
from tests.unit.codegen import programs

FOLDER = Path(__file__).parent / "codegen"

PROGRAMS = {
    "pointwise": programs.pointwise(
        (40, 1000), lambda x, z: apply("tanh", apply("add", x, z)), torch.float32, torch.float32
    ),
    "softmax": programs.softmax(64, 200, torch.bfloat16),
    "column_sum": programs.reduction("sum", (500, 300), (1,)),
    "argmax": programs.reduction("argmax", (64, 1000), (0,)),
    "transpose": programs.transposed_add(256, 128),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_generated_source(name: str, bless: bool) -> None:
    program: LoopProgram = PROGRAMS[name]
    plan = schedule(program, config.snapshot())
    (unit,) = generate(plan, config.snapshot()).units
    _, kernels = unit.text.split("// --- kernels ---\n", 1)
    text = "---\n".join([print_loops(program), print_schedule(plan), kernels])
    check_golden(FOLDER / f"{name}.txt", text, bless)
