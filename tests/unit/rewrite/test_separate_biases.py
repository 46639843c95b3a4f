"""Biases of convolutions apart from the library's calls: the same numbers, memory and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from braze.ir.graphs.graph import Graph
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.graphs.run_graph import run_graph
from braze.ir.graphs.verify_graph import verify_graph
from braze.options import config
from braze.rewrite import rewrite
from braze.rewrite.separate_biases import separate_biases
from braze.tracing import Tracer

CONVOLUTIONS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "1d": (nn.Conv1d(4, 6, 3, dilation=2), (2, 4, 20)),
    "2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 8)),
    "3d": (nn.Conv3d(2, 3, 2), (2, 2, 4, 5, 6)),
    "groups": (nn.Conv2d(8, 8, 3, groups=2), (2, 8, 9, 8)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2), (2, 4, 5, 5)),
    "no batch": (nn.Conv2d(4, 6, 3), (4, 9, 8)),
    "an empty batch": (nn.Conv2d(4, 6, 3), (0, 4, 9, 8)),
}


def _captured(function: Any, *given: torch.Tensor) -> tuple[Graph, list[torch.Tensor]]:
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        results = function(*[tracer.add_input(x) for x in given])
        results = list(results) if isinstance(results, tuple) else [results]
        finished = tracer.finish([x for x in results if x is not None])
    return finished.graph, [given[n] for n in finished.inputs]


def _same(before: Graph, after: Graph, given: list[torch.Tensor]) -> None:
    verify_graph(after)
    for wanted, found in zip(run_graph(before, given), run_graph(after, given), strict=True):
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


def _convolutions(graph: Graph, name: str = "convolution") -> list[Any]:
    return [node for node in graph.nodes if str(node.op) == f"aten.{name}.default"]


@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels-last"])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_a_bias_is_added_behind_its_convolution(kind: str, last: bool) -> None:
    module, shape = CONVOLUTIONS[kind]
    if last and len(shape) != 4:
        pytest.skip("not an image")
    x = torch.randn(shape)
    x = x.contiguous(memory_format=torch.channels_last) if last else x
    function = torch.func.functional_call

    def called(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> Any:
        return function(module, {"weight": weight, "bias": bias}, (x,)).relu()

    weight, bias = module.weight.detach(), module.bias.detach()  # type: ignore[union-attr,operator]
    before, given = _captured(called, x, weight, bias)  # type: ignore[arg-type]
    assert [node.args[2] is None for node in _convolutions(before)] == [False]
    after = separate_biases(before, ("cpu",))
    assert [node.args[2] is None for node in _convolutions(after)] == [True]
    _same(before, after, given)
    assert separate_biases(before) is before, "the bias of a CPU's is computed with the rest"


@pytest.mark.parametrize("wanted", [(1, 1, 1), (0, 1, 1), (0, 0, 1), (1, 1, 0)], ids=str)
def test_the_gradient_of_a_bias_is_a_sum(wanted: tuple[int, ...]) -> None:
    mask = [bool(flag) for flag in wanted]

    def called(upstream: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        rest = ([6], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        return torch.ops.aten.convolution_backward(upstream, x, weight, *rest)

    given = (torch.randn(2, 6, 9, 8), torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3))
    before, left = _captured(called, *given)
    after = separate_biases(before, ("cpu",))
    calls = _convolutions(after, "convolution_backward")
    assert len(calls) == (1 if any(wanted[:2]) else 0)
    assert all(node.outputs[2] is None and not node.args[10][2] for node in calls)
    assert sum("aten.sum" in str(node.op) for node in after.nodes) == wanted[2]
    _same(before, after, left)


def test_one_of_each_channel_keeps_its_bias_unless_something_follows_it() -> None:
    rest = "[1, 1], [1, 1], [1, 1], False, [0, 0], 8"
    image = "f32[2, 8, 6, 6][288, 36, 6, 1]cpu"
    head = [
        "graph {",
        f"input %0: {image}",
        "input %1: f32[8, 1, 3, 3][9, 9, 3, 1]cpu",
        "input %2: f32[8][1]cpu",
        f"%3: {image} = aten.convolution.default(%0, %1, %2, {rest})",
    ]
    alone = parse_graph("\n".join([*head, "output %3", "}\n"]))
    assert separate_biases(alone, ("cpu",)).nodes == alone.nodes
    followed = parse_graph(
        "\n".join([*head, f"%4: {image} = aten.relu.default(%3)", "output %4", "}\n"])
    )
    assert len(separate_biases(followed, ("cpu",)).nodes) == 4


def test_eager_numerics_leave_the_call_whole() -> None:
    image = "f32[2, 8, 6, 6][288, 36, 6, 1]cuda:0"
    graph = parse_graph(
        f"graph {{\ninput %0: {image}\ninput %1: f32[8, 8, 1, 1][8, 1, 1, 1]cuda:0\n"
        "input %2: f32[8][1]cuda:0\n"
        f"%3: {image} = aten.convolution.default(%0, %1, %2, [1, 1], [0, 0], [1, 1], False, [0, 0],"
        " 1)\noutput %3\n}\n"
    )
    for numerics, apart in (("eager", False), ("default", True)):
        with config.patch(numerics=numerics):
            made = rewrite(graph, config.snapshot())
        assert [node.args[2] is None for node in _convolutions(made)] == [apart]
