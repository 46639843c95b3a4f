"""The innermost loop goes along memory: a device takes several times as long otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze import pipeline
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.schedule import Kernel, Schedule, scatters
from braze.options import Options
from braze.schedule import CPU, CUDA, schedule
from braze.schedule.target import Target

FEATURES, ROWS = 32, 400


def _added_rows(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(500, FEATURES).index_add_(0, at, x[at])


def _scattered_rows(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    places = at[:, None].expand(-1, FEATURES)
    return torch.zeros(500, FEATURES).scatter_add_(0, places, x[at] * 0.5)


def _put_rows(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(500, FEATURES).index_put_((at,), x[at] * 0.5)


@pytest.mark.parametrize("target", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("function", [_added_rows, _scattered_rows, _put_rows])
def test_rows_are_scattered_along_their_features(
    function: Callable[..., Any], target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions are read once a row: however many rows there are, features weigh more."""
    inputs = torch.randn(500, FEATURES), torch.randint(500, (ROWS,))
    kernels = [k for k in _kernels(function, inputs, target, monkeypatch) if scatters(k)]
    assert [k.phases[0].loops[-1][1] for k in kernels] == [FEATURES]


@pytest.mark.parametrize("target", [CPU, CUDA], ids=["cpu", "cuda"])
def test_pairs_are_read_along_memory(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rotary embedding: neighbours are two elements apart, heads 128."""

    def rotated(q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        c = c[None, :, None]
        real = q[..., 0] * c[..., 0] - q[..., 1] * c[..., 1]
        return torch.stack([real, q[..., 0] * c[..., 1] + q[..., 1] * c[..., 0]], -1)

    inputs = torch.randn(2, 16, 32, 64, 2), torch.randn(16, 64, 2)
    (kernel,) = _kernels(rotated, inputs, target, monkeypatch)
    assert kernel.phases[0].loops[-1][1] == 64


def _kernels(
    function: Callable[..., Any],
    inputs: tuple[torch.Tensor, ...],
    target: Target,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Kernel]:
    """The kernels of the function's graph on a target; it runs on the CPU, and is right there."""
    planned: list[Schedule] = []

    def noted(program: LoopProgram, *arguments: Any) -> Schedule:
        planned.append(schedule(program, Options(), target))
        return schedule(program, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "schedule", noted)
        torch.testing.assert_close(
            braze.compile(function, fullgraph=True)(*inputs), function(*inputs)
        )
    return [step for step in planned[0].steps if isinstance(step, Kernel)]
