"""Programs through schedule, generator and linker, beside the loop evaluator."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from braze.codegen.cpp import generate
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.run_loops import run_loops
from braze.options import config
from braze.runtime.launch.cpp_compiler import NoCompiler
from braze.runtime.link.link_cpu import link
from braze.schedule import schedule

OPTIONS = config.snapshot()


def compiled(program: LoopProgram) -> GraphCallable:
    """The program built and loaded."""
    plan = schedule(program, OPTIONS)
    linked = link(plan, generate(plan, OPTIONS), OPTIONS)
    assert not isinstance(linked, NoCompiler), linked.reason
    return linked


def check(program: LoopProgram, inputs: Sequence[torch.Tensor], **tolerances: float) -> None:
    """Twice the same call, compared with the evaluator in values and strides."""
    expected = run_loops(program, [x.clone() for x in inputs])
    function = compiled(program)
    for _ in range(2):
        actual = function([x.clone() for x in inputs])
        assert len(actual) == len(expected)
        for mine, right in zip(actual, expected, strict=True):
            assert mine.stride() == right.stride()
            torch.testing.assert_close(mine, right, equal_nan=True, **tolerances)
