"""A module with a `__call__` of its own, recursion without an end, tensors that change places."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import nn

import braze


class Doubling(nn.Module):
    """A module whose call does more than `forward`."""

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(x * 2, *args, **kwargs)

    def forward(self, x: torch.Tensor, more: float = 1.0) -> torch.Tensor:
        return x + more


@pytest.mark.parametrize("hooked", [False, True])
def test_a_module_with_a_call_of_its_own(hooked: bool) -> None:
    model = Doubling()
    if hooked:
        model.register_forward_hook(lambda module, given, result: result * 3)
    compiled = braze.compile(model, backend="eager", fullgraph=True)
    x = torch.arange(3.0)
    for _ in range(2):
        assert torch.equal(compiled(x), model(x))
        assert torch.equal(compiled(x, more=3), model(x, more=3))
        assert torch.equal(compiled.forward(x), model.forward(x))
    graph_module = braze.export(model)(x).graph_module
    assert torch.equal(graph_module(x), model(x))


@pytest.mark.filterwarnings("ignore")
def test_recursion_without_an_end() -> None:
    def deeper(x: torch.Tensor) -> torch.Tensor:
        return deeper(x + 1)

    compiled = braze.compile(deeper, backend="eager")
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(400, len(_frames()) + 300))
    try:
        with pytest.raises(RecursionError) as raised:
            compiled(torch.ones(2))
    finally:
        sys.setrecursionlimit(limit)
    names = [entry.name for entry in raised.traceback]
    assert names.count("deeper") > 200


def _frames() -> list[Any]:
    frame, found = sys._getframe(), []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back  # type: ignore[assignment]
    return found


def test_tensors_that_change_places() -> None:
    def swap(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = a + 1
        torch.utils.swap_tensors(a, b)
        return a * c.sum()

    compiled = braze.compile(swap, backend="eager")
    for _ in range(2):
        pairs = [(torch.ones(2), torch.arange(6.0).view(2, 3)) for _ in range(2)]
        assert torch.equal(compiled(*pairs[0]), swap(*pairs[1]))
        for found, expected in zip(*pairs, strict=True):
            assert torch.equal(found, expected)
