"""A part of the sweeps over what changes of one tensor or one module.

`python -m tests.surface.tensor_changes` and `python -m tests.surface.module_changes` ask all.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import braze
from tests.surface import module_changes, modules, tensor_changes
from tests.surface.following import Change, follow, those_that_apply
from tests.surface.tensor_kinds import KINDS
from tests.surface.tensor_questions import Question, questions
from tests.surface.tensors import Tally, function_of, part_of

PART = os.environ.get("BRAZE_SURFACE_PART", "11/290")
LEAST_CHANGES = 170


def test_answers_follow_what_changes_of_a_tensor() -> None:
    tally = tensor_changes.sweep(part_of(questions(), PART))
    assert not tally.differences, "\n".join(map(str, tally.differences))
    assert tally.asked > 500
    assert tally.graphs > 50


def test_answers_follow_what_changes_of_a_module() -> None:
    tally = module_changes.sweep(part_of(modules.questions(), PART))
    assert not tally.differences, "\n".join(map(str, tally.differences))
    assert tally.asked > 100
    assert tally.graphs > 10


def test_changes_are_many_and_apply() -> None:
    found = [tensor_changes.changes(), module_changes.changes()]
    assert sum(map(len, found)) >= LEAST_CHANGES
    for changes in found:
        assert {*those_that_apply(changes)} == {*changes}


@pytest.mark.parametrize("text", ["x.shape", "x.requires_grad", "hasattr(x, 'mark')", "type(x)"])
def test_sweep_finds_a_stale_answer(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What answers with its first answer differs after some change."""

    def compile_once(function: Any, **options: Any) -> Any:
        first: list[Any] = []

        def stale(x: Any) -> Any:
            first.append(function(x))
            return first[0]

        return stale

    monkeypatch.setattr(braze, "compile", compile_once)
    tally = Tally()
    changes = tensor_changes.changes()
    function = function_of(Question(text, False), "x")
    follow(text, "the input", function, changes, tensor_changes.answer, tally)
    assert tally.differences


def test_what_cannot_be_applied_is_no_change() -> None:
    def fail(x: Any) -> None:
        raise RuntimeError

    changes = {"fails": Change(KINDS["plain"], fail), "fills": Change(KINDS["plain"], torch.zero_)}
    assert those_that_apply(changes) == ["fills"]
