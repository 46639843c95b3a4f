"""A graph that nobody asks for any more goes while it is compiled; a fault behind that is met."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import braze
from braze import pipeline
from braze.errors import InternalError
from braze.ir.graphs.graph import Node
from braze.trace import Journal

X = torch.tensor([0.25, 0.5, -0.125])


def program(x: torch.Tensor, count: list[int]) -> torch.Tensor:
    count.append(1)
    made = (x.erfinv() * 2).cos()
    x.mul_(3)
    return made


def nodes_left() -> list[Node]:
    """Nodes of the program's graphs."""
    op = torch.ops.aten.erfinv.default
    return [o for o in gc.get_objects() if type(o) is Node and o.op is op]


def test_nodes_go_when_they_are_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()
    schedule, left, of_others = pipeline.schedule, [], nodes_left()

    def watched(*given: Any) -> Any:
        left.append(len([node for node in nodes_left() if not any(node is o for o in of_others)]))
        return schedule(*given)

    monkeypatch.setattr(pipeline, "schedule", watched)
    x, count = X.clone(), []
    result = braze.compile(program)(x, count)
    assert torch.equal(result, program(X.clone(), []))
    assert torch.equal(x, X * 3) and count == [1]
    assert left == [0]


def fail(*_: Any) -> Any:
    raise ValueError("no such luck")


def test_a_fault_behind_lowering_is_met_by_eager_kernels(
    monkeypatch: pytest.MonkeyPatch, journal: Journal
) -> None:
    monkeypatch.setattr(pipeline, "schedule", fail)
    compiled = braze.compile(program)
    x, count = X.clone(), []
    with pytest.warns(braze.exc.BrazeWarning, match="no such luck") as told:
        result = compiled(x, count)
    assert len(told) == 1
    assert torch.equal(result, program(X.clone(), []))
    assert torch.equal(x, X * 3) and count == [1]
    again = X.clone()
    assert torch.equal(compiled(again, count), result) and torch.equal(again, X * 3)
    (record,) = journal.records()
    assert record.outcome == "graph"
    assert [text for text in record.fallbacks if "no such luck" in text]


def test_a_fault_names_its_stage_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "schedule", fail)
    x, count = X.clone(), []
    with pytest.raises(InternalError, match="no such luck") as raised:
        braze.compile(program, options={"suppress_errors": False})(x, count)
    assert raised.value.stage == "schedule"
    assert "test_consumed_graphs.py" in str(raised.value.origin)
    assert torch.equal(x, X) and not count


def test_without_a_compiler_the_graph_stays() -> None:
    options = {"compiler": "no-such-compiler-of-graphs"}
    x, count = X.clone(), []
    with pytest.warns(braze.exc.BrazeWarning, match="no-such-compiler-of-graphs"):
        result = braze.compile(program, options=options)(x, count)
    assert torch.equal(result, program(X.clone(), []))
    assert torch.equal(x, X * 3) and count == [1]
