"""Random programs about shapes, run larger than they are: rows do not see what lies behind."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from braze.runtime.cuda_graphs import padded_callable as padded_graph
from braze.runtime.cuda_graphs.padded_callable import PaddedGraph, padding_plan
from tests.differential.shape_programs import shape_program
from tests.unit.schedule.rows_programs import MULTIPLE, compiled, filled_by_nan

SEEDS = range(10_000, 10_060)
# How many of them have a size that is padded; more is welcome.
PADDED = 12


def test_padded_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(padded_graph, "_filled", filled_by_nan)
    found = 0
    for seed in SEEDS:
        program = shape_program(seed)

        def run(x: Tensor, program: Any = program) -> Tensor:
            return program(x)

        with torch.no_grad():
            made = compiled(monkeypatch, run, *[(x,) for x in program.calls[:2]], dynamic=True)
            if not made.plan.padding.sizes:
                continue
            found += 1
            padded = PaddedGraph(
                lambda i, m=made: list(m.run(i)), padding_plan(made.plan), MULTIPLE
            )
            wanted, results = made.run(list(made.inputs)), padded(list(made.inputs))
        for mine, right in zip(results, wanted, strict=True):
            assert mine.stride() == right.stride(), f"seed {seed}\n{program}"
            torch.testing.assert_close(
                mine, right, rtol=1e-4, atol=1e-5, msg=lambda m, s=seed: f"seed {s}: {m}"
            )
    assert found >= PADDED
