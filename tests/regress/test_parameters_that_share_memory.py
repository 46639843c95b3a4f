"""A parameter in the memory of an argument that is written to, made for the call or a module's: the
program that was compiled for two that lie apart read what the parameter held before the write."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import braze


def _shift(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y += 3
    return x - 2


class _Box:
    def __init__(self, weight: nn.Parameter) -> None:
        self.weight = weight


def _shift_held(box: _Box, y: torch.Tensor) -> torch.Tensor:
    y += 3
    return box.weight - 2


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
@pytest.mark.parametrize(
    ("function", "given"), [(_shift, nn.Parameter), (_shift_held, lambda x: _Box(nn.Parameter(x)))]
)
def test_of_arguments(
    backend: str, function: Callable[..., object], given: Callable[..., object]
) -> None:
    compiled = braze.compile(function, backend=backend)
    compiled(given(torch.zeros(2, 3)), torch.zeros(3))
    for row in (0, 1):
        x, z = torch.zeros(2, 3), torch.zeros(2, 3)
        assert torch.equal(compiled(given(x), x[row]), function(given(z), z[row]))
        assert torch.equal(x, z)


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3, bias=False)
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return self.linear(x)


@pytest.mark.parametrize("backend", ["aot_eager", "braze"])
def test_of_modules(backend: str) -> None:
    module = _Scaled()
    compiled = braze.compile(module, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            x, z = torch.ones(6, 3), torch.ones(6, 3)
            assert torch.equal(compiled(x), module(z))
        for _ in range(2):
            x, z = torch.ones(6, 3), torch.ones(6, 3)
            module.linear.weight.data = x[:3]
            found = compiled(x)
            module.linear.weight.data = z[:3]
            assert torch.equal(found, module(z))


def test_parameters_are_compared_only_where_an_argument_is_written_to() -> None:
    module = _Scaled()

    def overlaps(function: Callable[..., object]) -> str:
        guards = braze.explain(function)(torch.ones(6, 3)).guards
        return " ".join(guard for guard in guards if "STORAGE_OVERLAP" in guard)

    assert "linear.weight" in overlaps(module)
    assert "norm.running_mean" in overlaps(lambda x: module.norm(x))
    assert "norm.weight" not in overlaps(lambda x: module.norm(x))
    assert not overlaps(lambda x: module.linear(x))
