"""Whole captures of small programs."""

from __future__ import annotations

import gc

import torch

from braze.capture import CapturedFrame
from braze.tracing.fake_tensor import TracedTensor
from tests.unit.capture.replay import captured_once, outcome, same


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


def test_no_stand_in_stays_alive():
    def f(x, items):
        y = x * 2
        items.append(y)
        return [y, lambda: y]

    gc.collect()
    gc.disable()
    before = {id(o) for o in gc.get_objects() if type(o) is TracedTensor}
    try:
        captured = outcome(f, torch.ones(3), [])
        alive = [o for o in gc.get_objects() if type(o) is TracedTensor and id(o) not in before]
    finally:
        gc.enable()
    assert isinstance(captured, CapturedFrame)
    assert not alive
