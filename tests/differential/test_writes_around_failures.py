"""A part of the sweep of writes around operators that raise; all of it:
`python -m tests.differential.writes_around_failures` or BRAZE_ALL_FAILING_OPERATORS set."""

from __future__ import annotations

import itertools
import os

import pytest
import torch

import braze
from tests.differential.failure_sweep import note
from tests.differential.writes_around_failures import cases_of, difference, swept_operators

_IS_ALL = "BRAZE_ALL_FAILING_OPERATORS" in os.environ
# Positions, rows, draws, factors, a library's checks, numbers; classes beside an ignored one.
_PART = (
    "take gather index_put multinomial linalg.cholesky bincount nn.functional.embedding "
    "nn.functional.cross_entropy nn.functional.one_hot"
).split()
_NAMES = [*swept_operators()] if _IS_ALL else _PART


@pytest.mark.parametrize("name", _NAMES)
def test_writes_around_failure_are_eagers(name: str) -> None:
    cases = list(cases_of(swept_operators()[name], samples=2 if _IS_ALL else 1))
    assert cases or _IS_ALL
    for case, acts, reads in itertools.product(cases, (False, True), (False, True)):
        assert difference(case, acts, reads) is None


def test_classes_behind_effects_are_one_graph() -> None:
    def program(x: torch.Tensor, y: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        note(x)
        loss = torch.nn.functional.cross_entropy(y, classes, ignore_index=-100)
        x.mul_(3)
        return loss

    x, y = torch.zeros(2), torch.ones(3, 5)
    report = braze.explain(program)(x.clone(), y, torch.tensor([0, -100, 4]))
    assert (report.graph_count, report.break_count) == (1, 0)
    compiled = braze.compile(program)
    compiled(x, y, torch.tensor([0, -100, 4]))
    assert x.tolist() == [3.0, 3.0]
    with pytest.raises(IndexError):
        compiled(x, y, torch.tensor([0, 9, 4]))
    assert x.tolist() == [4.0, 4.0]
