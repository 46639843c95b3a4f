"""Convolutions in channels-last layout: the same numbers, and nothing that the caller can see."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
import torch

import braze
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.graphs.run_graph import run_graph
from braze.ir.graphs.verify_graph import verify_graph
from braze.rewrite.prefer_channels_last import PRICES, prefer_channels_last

Setter: TypeAlias = Callable[[bool], None]
IMAGE = "f32[2, 8, 6, 6][288, 36, 6, 1]cpu"
OPTIONS = "None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1"


def _graph(*lines: str) -> Graph:
    head = [f"input %0: {IMAGE}", "input %1: f32[8, 8, 1, 1][8, 1, 1, 1]cpu"]
    convolutions = [
        f"%{n + 1}: {IMAGE} = aten.convolution.default(%{n}, %1, {OPTIONS})" for n in range(2, 8)
    ]
    first = f"%2: {IMAGE} = aten.convolution.default(%0, %1, {OPTIONS})"
    return parse_graph("\n".join(["graph {", *head, first, *convolutions, *lines, "}\n"]))


def _strides(graph: Graph, op: str) -> list[tuple[int, ...]]:
    return [node.outputs[0].type.stride for node in graph.nodes if str(node.op) == op]


def _same_results(before: Graph, after: Graph, scale: float = 0.3) -> None:
    verify_graph(after)
    torch.manual_seed(0)
    inputs = [scale * torch.randn(value.type.shape) for value in before.inputs]
    written = [[tensor.clone() for tensor in inputs] for _ in range(2)]
    results = []
    for graph, given in zip((before, after), written):
        torch.manual_seed(1)
        results.append([*run_graph(graph, given), *given])
    for wanted, found in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


ENDINGS = {
    "an image returned": [f"%9: {IMAGE} = aten.relu.default(%8)", "output %9", "output %8"],
    "a view": ["%9: f32[2, 288][288, 1]cpu = aten.view.default(%8, [2, 288])", "output %9"],
    "a reduction": ["%9: f32[2, 8][8, 1]cpu = aten.mean.dim(%8, [2, 3])", "output %9"],
    "small factors": [
        "%9: f32[2, 8, 1, 1][8, 1, 1, 1]cpu = aten.mean.dim(%8, [2, 3], True)",
        f"%10: {IMAGE} = aten.mul.Tensor(%0, %9)",
        "output %10",
    ],
    "a write": [f"%9: {IMAGE} = aten.add.Tensor(%8, %7)", "write %0 <- %9", "output %7"],
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_moves_convolutions_and_nothing_that_is_seen(ending: list[str]) -> None:
    before = _graph(*ending)
    after = prefer_channels_last(before)
    assert set(_strides(after, "aten.convolution.default")) == {(288, 1, 48, 8)}
    _same_results(before, after)


def test_random_numbers_are_drawn_in_the_order_of_eager() -> None:
    draw = f"%6: {IMAGE} = aten.bernoulli.default(%5)"
    sigmoid = f"%5: {IMAGE} = aten.sigmoid.default(%4)"
    before = parse_graph(
        "\n".join(["graph {", f"input %0: {IMAGE}", "input %1: f32[8, 8, 1, 1][8, 1, 1, 1]cpu"])
        + f"\n%2: {IMAGE} = aten.convolution.default(%0, %1, {OPTIONS})"
        + f"\n%3: {IMAGE} = aten.convolution.default(%2, %1, {OPTIONS})"
        + f"\n%4: {IMAGE} = aten.convolution.default(%3, %1, {OPTIONS})"
        + f"\n{sigmoid}\n{draw}\noutput %6\n}}\n"
    )
    after = prefer_channels_last(before)
    assert _strides(after, "aten.bernoulli.default") == [(288, 36, 6, 1)]
    assert _strides(after, "aten.convolution.default")[0] == (288, 1, 48, 8)
    _same_results(before, after)


def test_stays_where_weights_are_larger_than_images() -> None:
    graph = parse_graph(
        "graph {\ninput %0: f32[1, 64, 2, 2][256, 4, 2, 1]cpu\n"
        "input %1: f32[64, 64, 3, 3][576, 9, 3, 1]cpu\n"
        "%2: f32[1, 64, 2, 2][256, 4, 2, 1]cpu = aten.convolution.default("
        "%0, %1, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)\noutput %2\n}\n"
    )
    assert prefer_channels_last(graph) is graph


def test_stays_where_most_images_would_be_converted_back() -> None:
    graph = parse_graph(
        f"graph {{\ninput %0: {IMAGE}\ninput %1: f32[8, 8, 1, 1][8, 1, 1, 1]cpu\n"
        f"%2: {IMAGE} = aten.convolution.default(%0, %1, {OPTIONS})\n"
        "%3: f32[2, 288][288, 1]cpu = aten.view.default(%2, [2, 288])\noutput %3\n}\n"
    )
    assert prefer_channels_last(graph) is graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padded_pooling_between_convolutions(dtype: torch.dtype) -> None:
    """The pooling's kernel has its window's edges as conditions that all lanes share."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 32, 3, padding=1),
        torch.nn.MaxPool2d(3, stride=2, padding=1),
        torch.nn.Conv2d(32, 32, 1),
        torch.nn.AvgPool2d(3, stride=2, padding=1),
        torch.nn.Conv2d(32, 32, 1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(32, 16, 1),
    ).to(dtype)
    x = torch.randn(2, 3, 21, 19, dtype=dtype)
    with torch.no_grad():
        found, expected = braze.compile(model)(x), model(x)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)


# --- as on a GPU, for graphs whose types say CPU -------------------------------------------------

ON_GPU = {"cpu": PRICES["cuda"]}


@pytest.fixture
def allow_tf32() -> Iterator[Setter]:
    """Sets it. (What assigns to the module's attribute raises where PyTorch's testing library was
    imported.)"""
    before = torch._C._get_cudnn_allow_tf32()
    yield torch._C._set_cudnn_allow_tf32
    torch._C._set_cudnn_allow_tf32(before)


IMAGE_OF_64 = "f32[1, 64, 2, 2][256, 4, 2, 1]cpu"


def _wide(weight: str, groups: int) -> Graph:
    """A chain of convolutions whose weights are larger than their images."""
    rest = f"%1, None, [1, 1], [1, 1], [1, 1], False, [0, 0], {groups})"
    chain = [
        f"%{n}: {IMAGE_OF_64} = aten.convolution.default(%{n - 1 if n > 2 else 0}, {rest}"
        for n in range(2, 8)
    ]
    head = ["graph {", f"input %0: {IMAGE_OF_64}", f"input %1: f32{weight}cpu"]
    return parse_graph("\n".join([*head, *chain, "output %7", "}\n"]))


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
def test_on_a_gpu(ending: list[str], allow_tf32: Setter) -> None:
    allow_tf32(True)
    before = _graph(*ending)
    after = prefer_channels_last(before, ON_GPU)
    assert set(_strides(after, "aten.convolution.default")) == {(288, 1, 48, 8)}
    _same_results(before, after)


def test_on_a_gpu_weights_cost_nothing_more(allow_tf32: Setter) -> None:
    allow_tf32(True)
    before = _wide("[64, 64, 3, 3][576, 9, 3, 1]", 1)
    assert prefer_channels_last(before) is before
    after = prefer_channels_last(before, ON_GPU)
    assert {*_strides(after, "aten.convolution.default")} == {(256, 1, 128, 64)}
    _same_results(before, after, 0.04)


def test_on_a_gpu_without_matrix_units_it_stays(allow_tf32: Setter) -> None:
    allow_tf32(False)
    graph = _graph("output %8")
    assert prefer_channels_last(graph, ON_GPU) is graph


def test_on_a_gpu_groups_move(allow_tf32: Setter) -> None:
    allow_tf32(True)
    graph = _wide("[64, 1, 3, 3][9, 9, 3, 1]", 64)
    assert prefer_channels_last(graph, ON_GPU) is not graph


def test_on_a_gpu_one_convolution_stays(allow_tf32: Setter) -> None:
    """What it need not reorder is what is converted instead."""
    allow_tf32(True)
    whole = _wide("[64, 64, 3, 3][576, 9, 3, 1]", 1)
    outputs = (dataclasses.replace(whole.outputs[0], value=whole.nodes[0].outputs[0]),)
    graph = dataclasses.replace(whole, nodes=whole.nodes[:1], outputs=outputs)
    assert prefer_channels_last(graph, ON_GPU) is graph


class Residual(torch.nn.Module):
    """A bottleneck as in ResNet-50, with what comes before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
        self.norms = torch.nn.ModuleList([torch.nn.BatchNorm2d(n) for n in (16, 8, 8, 16)])
        self.inner = torch.nn.ModuleList(
            [
                torch.nn.Conv2d(16, 8, 1, bias=False),
                torch.nn.Conv2d(8, 8, 3, padding=1, bias=False),
                torch.nn.Conv2d(8, 16, 1, bias=False),
            ]
        )
        self.head = torch.nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.nn.functional.max_pool2d(self.norms[0](self.stem(x)).relu(), 3, 2, 1)
        y = x
        for number, conv in enumerate(self.inner):
            y = self.norms[number + 1](conv(y))
            y = y.relu() if number < 2 else y
        y = (x + y).relu()
        return self.head(y.mean((2, 3))), y


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_residual_network_stays_channels_last(
    dtype: torch.dtype, allow_tf32: Setter, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_tf32(True)
    monkeypatch.setattr(prefer_channels_last, "__defaults__", (ON_GPU,))
    torch.manual_seed(0)
    model = Residual().to(dtype).eval()
    x = torch.randn(2, 3, 32, 32, dtype=dtype)
    with torch.no_grad():
        found, wanted = braze.explain(model)(x), model(x)
    assert not found.fallbacks
    for mine, eager in zip(found.result, wanted, strict=True):
        torch.testing.assert_close(mine, eager)
        assert mine.stride() == eager.stride()
