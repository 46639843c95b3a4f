"""Whole captures of small programs."""

from __future__ import annotations

import torch
from replay import captured_once, same


def test_plain_function():
    def f(x, y):
        return torch.relu(x @ y) + 1

    x, y = torch.randn(3, 4), torch.randn(4, 5)
    captured, result = captured_once(f, x, y)
    assert same(result, f(x, y))
    assert len(captured.graph.nodes) == 3


def test_sequential_module():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    x = torch.randn(3, 4)
    with torch.no_grad():
        captured, result = captured_once(type(model).forward, model, x)
        assert same(result, model(x))
    assert len(captured.inputs) == 5
