"""The gradient that cuDNN's attention gets is laid out as its result; its plan is not eager's."""

from __future__ import annotations

import math

import pytest
import torch

from braze.ir.graphs.graph import Graph, Node, Value
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.graphs.verify_graph import verify_graph
from braze.ir.types import TensorType
from braze.options import Options
from braze.rewrite import rewrite
from braze.rewrite.separate_attention_plans import separate_attention_plans

BACKWARD = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default
HEADS_INSIDE = "[1024, 64, 256, 1]"
ROWS = "[1024, 256, 64, 1]"


def _backward(
    gradient: str, result: str, dropout: float = 0.0, heads: int = 4, rows: str = "4"
) -> Graph:
    """gradient, result: strides. Of a batch of 2, heads of 64."""
    shape = f"[2, {heads}, {rows}, 64]"
    kinds = {0: gradient, 1: result, 2: result, 3: result, 4: result}
    lines = ["symbol s0 in [2, None]"] if rows == "s0" else []
    lines += [f"input %{n}: bf16{shape}{stride}cuda:0" for n, stride in kinds.items()]
    lines.append(f"input %5: f32[2, {heads}, {rows}][{heads}*{rows}, {rows}, 1]cuda:0")
    lines += [f"input %{n}: i64[][]cuda:0" for n in range(6, 11)]
    made = ", ".join(f"%{n}: bf16{shape}{result}cuda:0" for n in (11, 12, 13))
    given = ", ".join(f"%{n}" for n in range(11))
    call = f"{BACKWARD}({given}, 4, 4, {dropout}, False, scale=0.25)"
    lines += [f"({made}) = {call}", "output %11", "output %12", "output %13"]
    return parse_graph("graph {\n" + "\n".join(lines) + "\n}\n")


def _call(graph: Graph) -> Node:
    (node,) = [node for node in graph.nodes if node.op is BACKWARD]
    return node


def _type(value: object) -> TensorType:
    assert isinstance(value, Value) and isinstance(value.type, TensorType)
    return value.type


@pytest.mark.parametrize("result", [HEADS_INSIDE, ROWS])
@pytest.mark.parametrize("gradient", [HEADS_INSIDE, ROWS, "[0, 0, 0, 0]", "[1, 2, 8, 32]"])
def test_gradients_are_laid_out_as_results(gradient: str, result: str) -> None:
    graph = separate_attention_plans(_backward(gradient, result))
    verify_graph(graph)
    node = _call(graph)
    assert _type(node.args[0]) == _type(node.args[4])
    assert len(graph.nodes) == (1 if gradient == result else 4)


def test_the_copy_is_the_gradient() -> None:
    """As the nodes compute it, from elements that count up."""
    graph = separate_attention_plans(_backward("[1, 2, 8, 32]", HEADS_INSIDE))
    given = torch.arange(2048.0).as_strided((2, 4, 4, 64), (1, 2, 8, 32))
    made = {graph.inputs[0]: given}
    for node in graph.nodes[:-1]:
        (value,) = node.outputs
        assert value is not None and isinstance(node.args[0], Value)
        found = node.op(made[node.args[0]], *node.args[1:], **dict(node.kwargs))
        assert found.stride() == _type(value).stride
        made[value] = found
    copy = made[_call(graph).args[0]]  # type: ignore[index]
    assert torch.equal(copy, given)


def test_plans_are_found_apart_from_eagers() -> None:
    """Minus zero is no dropout, and none of eager's numbers; no pass takes the sign away."""
    for graph in (
        separate_attention_plans(_backward(ROWS, ROWS)),
        rewrite(_backward(ROWS, ROWS), Options()),
    ):
        dropout = _call(graph).args[13]
        assert dropout == 0.0 and math.copysign(1.0, dropout) == -1.0  # type: ignore[arg-type]
    assert _call(separate_attention_plans(_backward(ROWS, ROWS, 0.5))).args[13] == 0.5


def test_sizes_of_one_are_laid_out_anyhow() -> None:
    given = _backward("[256, 7, 64, 1]", "[256, 256, 64, 1]", heads=1)
    assert len(separate_attention_plans(given).nodes) == 1


def test_sizes_that_are_symbols() -> None:
    """By the order of the strides at hand."""
    given = _backward("[256*s0, 64*s0, 64, 1]", "[256*s0, 64, 256, 1]", rows="s0")
    graph = separate_attention_plans(given)
    verify_graph(graph)
    node = _call(graph)
    assert str(_type(node.args[0])) == str(_type(node.args[4])) and len(graph.nodes) == 4
