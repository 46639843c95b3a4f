"""Legacy constructors take a `torch.Size` for a shape and a tuple for elements: also in the text of
a graph that another backend gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "new of a size": lambda x, y: x.new(y.shape).fill_(2) + x,
    "new of a Size written out": lambda x, y: x.new(torch.Size([2, 3])).fill_(2) + x,
    "new of no dimensions": lambda x, y: x.new(torch.Size([])).fill_(1) + x,
    "new of numbers": lambda x, y: x.new(2, 3).zero_() + x,
    "new of elements": lambda x, y: x.new((2.0, 3.0)) * 2,
    "Tensor.new": lambda x, y: torch.Tensor.new(x, y.shape).fill_(1) + x,
    "Tensor": lambda x, y: torch.Tensor(y.shape).fill_(1) + x,
    "Tensor of elements": lambda x, y: torch.Tensor(tuple(y.shape)) + 1,
    "FloatTensor": lambda x, y: torch.FloatTensor(y.size()).fill_(3) + x,
    "a random tensor": lambda x, y: x.new(y.shape).uniform_(-1, 1) * x,
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("backend", ["eager", "braze"])
@pytest.mark.parametrize("name", CALLS)
def test_sizes_are_no_elements(name: str, backend: str) -> None:
    call = CALLS[name]
    x = torch.tensor([1.0, 2.0, 0.5])
    compiled = braze.compile(call, backend=backend)
    for rows in (2, 4, 5):
        y = torch.ones(rows, 3)
        torch.manual_seed(rows)
        expected = call(x, y)
        torch.manual_seed(rows)
        actual = compiled(x, y)
        assert actual.shape == expected.shape
        torch.testing.assert_close(actual, expected)
    assert braze.explain(call)(x, torch.ones(2, 3)).graph_count == 1
