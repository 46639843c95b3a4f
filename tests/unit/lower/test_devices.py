"""Graphs on a device with parts on the CPU: what is a kernel of the device's, and what is not."""

from __future__ import annotations

import pytest
import torch

from braze.codegen import triton
from braze.errors import InternalError
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.kernels.loops import Buffer, Definition, ExternCall, Literal, LoopProgram
from braze.ir.kernels.verify_loops import verify_loops
from braze.lower import lower
from braze.lower.devices import verify_targets
from braze.options import config
from tests.unit.codegen.programs import axes, define, program

OPTIONS = config.snapshot()

# As a step of NAdam: a number that is computed on the CPU scales a state there, and a parameter.
STEP = """graph {
  input %0: f32[4][1]cuda:0
  input %1: f32[][]cpu
  input %2: f64[][]cpu
  %3: f64[][]cpu = aten.neg.default(%2)
  %4: float = aten._local_scalar_dense.default(%3)
  %5: f32[][]cpu = aten.mul.Tensor(%1, %4)
  %6: f32[4][1]cuda:0 = aten.mul.Tensor(%0, %4)
  output %5
  output %6
}
"""


def _lowered(text: str) -> LoopProgram:
    program = lower(parse_graph(text), OPTIONS, triton.supports, torch.device("cuda:0"))
    verify_loops(program)
    return program


def test_a_number_of_the_cpu_s_is_no_kernel_of_the_device() -> None:
    """A kernel that wrote it would write to the host's memory."""
    program = _lowered(STEP)
    calls = [s for s in program.statements if isinstance(s, ExternCall)]
    kernels = [s for s in program.statements if isinstance(s, Definition)]
    assert [str(call.op) for call in calls] == ["aten.neg.default", "aten.mul.Tensor"]
    assert {kernel.target.device.type for kernel in kernels} == {"cuda"}
    (negated,), (_, number) = calls[0].outputs, calls[1].args
    assert number.is_number
    assert number.buffer is negated


def test_a_number_that_comes_in_is_read_where_it_is() -> None:
    text = STEP.replace("_local_scalar_dense.default(%3)", "_local_scalar_dense.default(%2)")
    program = _lowered(text)
    (call,) = [s for s in program.statements if isinstance(s, ExternCall) and "mul" in str(s.op)]
    assert call.args[1].buffer is program.inputs[2]


# As the backward of a mean that is taken on the CPU. A transpose that is merged is no view.
VIEWS = """graph {
  input %0: f32[][]cuda:0
  input %1: f32[2, 3][3, 1]cpu
  %2: f32[][]cpu = aten._to_copy.default(%0, device=device('cpu'))
  %3: f32[2, 3][0, 0]cpu = aten.expand.default(%2, [2, 3])
  %4: f32[2, 3][3, 1]cpu = aten.mul.Tensor(%3, %1)
  %5: f32[3, 2][1, 3]cpu = aten.t.default(%1)
  %6: f32[6][1]cpu = aten._unsafe_view.default(%5, [6])
  %7: f32[2][3]cpu = aten.as_strided.default(%4, [2], [3], 1)
  %8: f32[2, 3][3, 1]cpu = aten.neg.default(%1)
  output %4
  output %5
  output %6
  output %7
  output %3
  output %8
}
"""


def test_views_of_the_cpu_s_are_views() -> None:
    """The copy of an expanded tensor has memory for each element: its strides are others."""
    program = _lowered(VIEWS)
    calls = [str(s.op) for s in program.statements if isinstance(s, ExternCall)]
    assert calls == [
        f"aten.{op}"
        for op in ("_to_copy.default", "mul.Tensor", "_unsafe_view.default", "neg.default")
    ]
    copied, product = (call.outputs[0] for call in program.statements[:2])
    views = program.outputs
    assert (views[1].buffer, views[1].stride) == (program.inputs[1], (1, 3))
    assert (views[3].buffer, views[3].stride, views[3].offset) == (product, (3,), 1)
    assert (views[4].buffer, views[4].stride) == (copied, (0, 0))
    assert program.statements[1].args[0].stride == (0, 0)


def test_a_kernel_that_would_write_to_the_host_s_memory_is_refused() -> None:
    target = Buffer("host", torch.float32, (4,), (1,), torch.device("cpu"))
    statement = define(target, axes((4,)), Literal(1.0, torch.float32))
    with pytest.raises(InternalError, match="a kernel for cuda:0 would write to cpu"):
        verify_targets(program([], [statement], [target]), torch.device("cuda:0"))
