"""Flows of libraries: eager's values, and no more graphs, breaks or eager calls than torch.compile
has, counted side by side. `make flows` installs the libraries and takes them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo

import braze
from braze.trace import JOURNAL
from tests.models.flows import FLOWS

pytestmark = pytest.mark.filterwarnings("ignore")
CHOICE = ("generate with a static cache", "train with average", "encode")
# Losses and weights of training in bfloat16, where each rounding may fall elsewhere.
TOLERANCE = {"train by trainer": 2e-3, "train timm": 2e-2, "train with average": 2e-3}


def values_of(flow: Callable[[Any], Any], compile: Callable[[Any], Any]) -> list[Any]:
    torch.manual_seed(0)
    leaves: list[Any] = torch.utils._pytree.tree_leaves(flow(compile))
    return leaves


@pytest.mark.parametrize(
    "name",
    [name if name in CHOICE else pytest.param(name, marks=pytest.mark.zoo) for name in FLOWS],
)
def test_flow_is_right_and_breaks_no_more_than_torch_compile(name: str) -> None:
    flow = FLOWS[name]
    expected = values_of(flow, lambda model: model)
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    values_of(flow, lambda model: torch.compile(model, backend="eager"))
    theirs = (counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
    torch._dynamo.reset()
    braze.reset()
    found = values_of(flow, braze.compile)
    records = JOURNAL.records()
    graphs = sum(record.outcome == "graph" for record in records)
    breaks = [record.graph_break for record in records if record.graph_break]
    assert graphs > 0
    assert graphs <= theirs[0], records
    assert len(breaks) <= theirs[1], breaks
    assert not JOURNAL.fallbacks()
    tolerance = TOLERANCE.get(name, 1e-4)
    for one, other in zip(found, expected, strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        else:
            assert one == pytest.approx(other, rel=tolerance)
