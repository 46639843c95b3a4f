"""The backward of an RMS norm, which PyTorch has as one operator on devices alone."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from braze.ir.graphs.print_graph import parse_graph
from braze.lower import lower
from braze.options import config
from tests.unit.codegen.running import compiled

OPTIONS = config.snapshot()

GRAPH = """graph {
  input %0: f64[3, 5, 8][40, 8, 1]cpu
  input %1: f64[3, 5, 8][40, 8, 1]cpu
  input %2: f64[3, 5, 1][5, 1, 1]cpu
  input %3: f64[8][1]cpu
  (%4: f64[3, 5, 8][40, 8, 1]cpu, %5: f64[8][1]cpu) = aten._fused_rms_norm_backward.default\
(%0, %1, [8], %2, WEIGHT, [True, True])
  output %4
  output %5
}
"""


@pytest.mark.parametrize("is_weighted", [True, False])
def test_gradients_are_those_of_the_formula(is_weighted: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(8, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(3, 5, 8, dtype=torch.float64)
    functional.rms_norm(x, (8,), weight if is_weighted else None, 1e-5).backward(upstream)
    with torch.no_grad():
        scale = (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    text = GRAPH.replace("WEIGHT", "%3" if is_weighted else "None")
    program = lower(parse_graph(text), OPTIONS)
    assert not any(hasattr(statement, "op") for statement in program.statements), "no library call"
    made = compiled(program)([upstream, x.detach(), scale, weight.detach()])
    torch.testing.assert_close(made[0], x.grad)
    if is_weighted:
        torch.testing.assert_close(made[1], weight.grad)
