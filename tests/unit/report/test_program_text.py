"""Programs as traces print them."""

from __future__ import annotations

from dataclasses import replace

import torch

from braze.ir.graphs.print_graph import parse_graph, print_graph
from braze.report.program_text import ProgramPrinter

_GRAPH = """graph {
  input %0: f32[2][1]cpu
  constant %1: f32[2][1]cpu = [1234.5, 2.0]
  %2: f32[2][1]cpu = aten.add.Tensor(%0, %1)
  %3: f32[2][1]cpu = aten.mul.Tensor(%2, %1)
  output %3
}
"""


def test_changed_nodes_are_printed_anew() -> None:
    printer, graph = ProgramPrinter(), parse_graph(_GRAPH)
    first, second = graph.nodes
    changed = replace(graph, nodes=(first, replace(second, op=torch.ops.aten.div.Tensor)))
    for each in (graph, changed, graph):
        assert printer(each) == print_graph(each, values=False)
    assert "aten.div.Tensor" in str(printer(changed))
    assert "1234.5" not in str(printer(graph)) and "constant %1: f32[2][1]cpu\n" in str(
        printer(graph)
    )


def test_what_has_no_text_is_left_out() -> None:
    assert ProgramPrinter()(object()) is None
