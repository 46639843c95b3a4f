"""Graphs without most of their equal blocks: `reroll_blocks`."""

from __future__ import annotations

import sys

import pytest
import torch

import braze
from braze import pipeline
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.ir.graphs.verify_graph import verify_graph
from braze.rewrite import reroll_blocks


def _graph(function, *inputs, monkeypatch: pytest.MonkeyPatch) -> Graph:  # type: ignore[no-untyped-def]
    graphs: list[Graph] = []

    def noted(graph: Graph, compile: object) -> Graph:
        graphs.append(graph)
        return graph

    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(pipeline, "compile_regions", noted)
        braze.compile(function, fullgraph=True)(*inputs)
    return graphs[0]


def _layers(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    for weight in weights:
        x = x + torch.tanh(x @ weight).sigmoid() * 0.5
    return x.sum(-1)


def test_the_short_graph_is_the_model_with_fewer_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weights = torch.randn(3, 4), [torch.randn(4, 4) for _ in range(20)]
    graph = _graph(_layers, x, weights, monkeypatch=monkeypatch)
    found = reroll_blocks(graph, sys.maxsize)
    assert found is not None and found.dropped >= 12
    verify_graph(found.short)
    assert len(found.short.inputs) == len(graph.inputs) - found.dropped
    shapes = [value.type.shape for value in graph.inputs]  # type: ignore[union-attr]
    others = iter(weights)
    given = [x if shape == (3, 4) else next(others) for shape in shapes]
    kept = [given[number] for number in found.inputs]
    (ours,) = compile_graph_runner(found.short)(kept)
    torch.testing.assert_close(ours, _layers(x, [value for value in kept if value is not x]))


def test_few_layers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weights = torch.randn(3, 4), [torch.randn(4, 4) for _ in range(6)]
    assert reroll_blocks(_graph(_layers, x, weights, monkeypatch=monkeypatch), sys.maxsize) is None


def test_results_read_behind_the_last_layer_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def all_read(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        seen = []
        for weight in weights:
            x = x + torch.tanh(x @ weight).sigmoid() * 0.5
            seen.append(x)
        return torch.stack(seen).sum(0)

    x, weights = torch.randn(3, 4), [torch.randn(4, 4) for _ in range(20)]
    assert reroll_blocks(_graph(all_read, x, weights, monkeypatch=monkeypatch), sys.maxsize) is None


def test_weights_read_behind_the_last_layer_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def decayed(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        return _layers(x, weights) + sum(weight.square().sum() for weight in weights)

    x, weights = torch.randn(3, 4), [torch.randn(4, 4) for _ in range(20)]
    expected = decayed(x, weights)
    torch.testing.assert_close(braze.compile(decayed)(x, weights), expected)


def test_layers_that_write_to_an_input_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def counting(x: torch.Tensor, weights: list[torch.Tensor], total: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = x + torch.tanh(x @ weight).sigmoid() * 0.5
            total.add_(x.sum())
        return x

    x, weights = torch.randn(3, 4), [torch.randn(4, 4) for _ in range(20)]
    ours, eager = torch.zeros(()), torch.zeros(())
    torch.testing.assert_close(
        braze.compile(counting, fullgraph=True)(x, weights, ours), counting(x, weights, eager)
    )
    torch.testing.assert_close(ours, eager)
