"""Scheduling costs in proportion to a program's length: twice the layers, about twice the calls."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any, final

import pytest
import torch

import braze
from braze import pipeline
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.options import Options
from braze.schedule import CPU, CUDA, schedule
from braze.schedule import passes as plan
from braze.schedule.reductions.column_reduction import merge_columns
from braze.schedule.target import Target

# Sums over rows are split, and merged into the kernels of the rows, at sizes that a test affords.
SMALL_CUDA = replace(CUDA, least_work=1000, least_part=256, merges_columns=7)
LAYERS = 12
# Sorting and merging lists costs a little more than in proportion.
MOST_GROWTH = 2.35


class Normalised(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(64) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            x = x + torch.tanh(norm(x))
        return x


class Blocks(torch.nn.Module):
    """A residual block a layer, whose products lie between the kernels of its norms."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(64) for _ in range(layers)])
        self.linear = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, linear in zip(self.norms, self.linear):
            x = x + linear(norm(x))
        return x


class Products(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.linear = torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(layers)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear in self.linear:
            x = torch.relu(linear(x))
        return x


def _backward_of(model: torch.nn.Module, monkeypatch: pytest.MonkeyPatch) -> LoopProgram:
    programs: list[LoopProgram] = []

    def noted(program: LoopProgram, *arguments: Any) -> Schedule:
        programs.append(program)
        return schedule(program, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "schedule", noted)
        whole = {"skip_passes": ("reroll_blocks",)}
        braze.compile(model, options=whole)(torch.randn(100, 64)).sum().backward()
    return programs[-1]


@final
class _Calls:
    """Counts the Python functions that are called inside of `counted`."""

    def __init__(self) -> None:
        self.count = 0

    def counted(self, function: Any, *arguments: Any) -> Any:
        sys.setprofile(self._note)
        try:
            return function(*arguments)
        finally:
            sys.setprofile(None)

    def _note(self, frame: Any, event: str, argument: Any) -> None:
        self.count += event == "call"


@pytest.mark.parametrize("target", [CPU, SMALL_CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("kind", [Normalised, Products, Blocks])
def test_twice_the_layers_twice_the_calls(
    kind: type, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for layers in (LAYERS, 2 * LAYERS):
        calls = _Calls()
        calls.counted(schedule, _backward_of(kind(layers), monkeypatch), Options(), target)
        counts.append(calls.count)
    assert counts[1] / counts[0] < MOST_GROWTH, counts


def test_sums_are_merged_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for layers in (LAYERS, 2 * LAYERS):
        calls, merged = _Calls(), []

        def noted(*arguments: Any, calls: _Calls = calls, merged: list[Any] = merged) -> Any:
            merged.append(calls.counted(merge_columns, *arguments))
            return merged[-1]

        program = _backward_of(Blocks(layers), monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(plan, "merge_columns", noted)
            schedule(program, Options(), SMALL_CUDA)
        steps = merged[0].steps
        assert sum(isinstance(s, Kernel) and len(s.columns) > 0 for s in steps) >= layers - 1
        counts.append(calls.count)
    assert counts[1] / counts[0] < MOST_GROWTH, counts
