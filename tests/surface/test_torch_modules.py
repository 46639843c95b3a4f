"""Questions of torch's modules in compiled code: answered as in eager, whatever is set meanwhile.

Questions and changes are generated from `dir()` of the modules, so that what a version of PyTorch
adds is swept by itself.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal
from tests.surface.torch_changes import Change, changes
from tests.surface.torch_questions import asking, questions, shown

LEAST_QUESTIONS, LEAST_CHANGES = 250, 100


@functools.cache
def all_questions() -> dict[str, Callable[[], Any]]:
    """The questions, found once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return questions()


def answered(program: Callable[[torch.Tensor], Any], x: torch.Tensor) -> str:
    """What a program answers beside what it computes, or what it raises."""
    try:
        computed, answer = program(x)
    except Exception as error:
        return f"raises {type(error).__name__}"
    assert torch.equal(computed, x + 1)
    return shown(answer)


@pytest.mark.filterwarnings("ignore")
def test_answers_are_those_of_eager(journal: Journal) -> None:
    asked = all_questions()
    assert len(asked) >= LEAST_QUESTIONS
    x = torch.ones(3)
    wrong, graphs = [], 0
    for name, question in asked.items():
        program = asking(question)
        compiled = braze.compile(program, backend="eager")
        expected = answered(program, x)
        got = [answered(compiled, x) for _ in range(3)]
        counts = answered(program, x) != expected  # each call has an answer of its own
        if len(set(got) - {expected}) != 3 if counts else set(got) != {expected}:
            wrong.append((name, expected, got))
        graphs += any(record.outcome == "graph" for record in journal.records())
        journal.clear()
    assert not wrong
    assert graphs >= len(asked) * 0.95  # something was compiled of nearly each


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_changes_are_noticed() -> None:
    x = torch.ones(3)
    asked = {
        name: question
        for name, question in all_questions().items()
        if answered(asking(question), x) == answered(asking(question), x)
    }
    wrong: list[tuple[str, str, str, str]] = []
    count = 0
    for change in changes(asked):
        count += 1
        wrong += _unnoticed(change, asked, x)
    assert not wrong
    assert count >= LEAST_CHANGES


def _unnoticed(
    change: Change, asked: dict[str, Callable[[], Any]], x: torch.Tensor
) -> list[tuple[str, str, str, str]]:
    """The answers that a change, or its undoing, leaves wrong."""
    programs = {name: asking(asked[name]) for name in change.answers}
    compiled = {name: braze.compile(p, backend="eager") for name, p in programs.items()}
    found = []

    def compare(when: str) -> None:
        for name, program in programs.items():
            expected, got = answered(program, x), answered(compiled[name], x)
            if expected != got:
                found.append((f"{when} {change.name}", name, expected, got))

    compare("before")
    compare("before, again,")
    change.apply()
    try:
        compare("after")
        compare("after, again,")
    finally:
        change.undo()
    compare("undone")
    return found
