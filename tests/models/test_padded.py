"""Batches of whole models, run larger than they are, with NaN behind them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from braze.runtime.cuda_graphs import padded_callable as padded_graph
from braze.runtime.cuda_graphs.padded_callable import PaddedGraph, padding_plan
from tests.models.test_sizes import sweep
from tests.unit.schedule.rows_programs import MULTIPLE, compiled, filled_by_nan

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.mark.parametrize("name", ["resnet18", "vision_transformer", "bert", "gpt2", "llama"])
def test_batches_are_padded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = sweep(name)
    length = calls.sizes[0][1]

    def run(args: Any, kwargs: Any) -> Any:
        return calls.case.model(*args, **kwargs)

    calls.case.model.eval()
    made = compiled(monkeypatch, run, *[calls.arguments(batch, length) for batch in (2, 3)])
    assert len(made.plan.padding.sizes) == 1, made.plan.padding.refused
    monkeypatch.setattr(padded_graph, "_filled", filled_by_nan)
    padded = PaddedGraph(lambda i: list(made.run(i)), padding_plan(made.plan), MULTIPLE)
    with torch.no_grad():
        wanted, found = made.run(list(made.inputs)), padded(list(made.inputs))
    for mine, right in zip(found, wanted, strict=True):
        assert mine.stride() == right.stride()
        torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-4)
