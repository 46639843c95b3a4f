"""A fault of capture that looks like an exception of the program is told apart, and shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import braze
from braze.capture.calls.handler_registry import CALL_HANDLERS
from braze.capture.frames.control_signals import ProgramRaised


def wrong(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise ProgramRaised(LookupError("made up"))


def test_at_the_entry_and_behind_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALL_HANDLERS, math.erfc, wrong)

    def at_once(x: torch.Tensor) -> torch.Tensor:
        return x * math.erfc(0.0)

    def later(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        braze.graph_break()
        return y * math.erfc(0.0)

    for function in (at_once, later):
        report = braze.explain(function)(torch.ones(2))
        assert torch.equal(report.result, function(torch.ones(2)))
        assert any("made up" in text and "not raise" in text for text in report.fallbacks)


def test_an_exception_of_the_program_is_no_fallback() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.shape[0] == 2:
            raise LookupError("meant")
        return y

    explained = braze.explain(function)
    with pytest.raises(LookupError, match="meant"):
        explained(torch.ones(2))
    assert not explained(torch.ones(3)).fallbacks


def test_a_comparison_is_part_of_the_graph_before_its_branch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1:
            return x + 1
        return x - 1

    report = braze.explain(function)(torch.ones(2))
    assert report.break_reasons[0].code == "data-dependent-branch"
    assert any(name.startswith("aten.gt") for name in report.ops_per_graph[0])
