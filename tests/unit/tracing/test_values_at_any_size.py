"""Truths that depend on constants alone are known whatever the sizes are, and no others are."""

from __future__ import annotations

import pytest
import torch

import braze
from braze.errors import GraphBreakError


def filled(x):
    return torch.full((x.shape[0],), True).all()


def filled_with_false(x):
    return torch.zeros(x.shape[0], dtype=torch.bool).any()


def expanded(x):
    return (torch.tensor([1.0, 2.0]).expand(x.shape[0], 2) > 0).all(-1).all()


def transposed(x):
    matrices = torch.eye(2).mul(3).expand(x.shape[0], 2, 2)
    return torch.isclose(matrices, matrices.mT).all()


def factored(x):
    matrices = torch.eye(2).mul(3).expand(x.shape[0], 2, 2)
    return torch.linalg.cholesky_ex(matrices).info.eq(0).all()


def selected(x):
    return torch.arange(3).expand(x.shape[0], 3)[1, 2] == 2


def least(x):
    return (torch.ones(x.shape[0], 40, 40).amin(0) == 1).all()


def of_whole_matrices(x):
    return torch.eye(40).diagonal().sum() == 40


def refilled(x):
    return torch.empty(x.shape[0]).fill_(2.0).amax() == 2


KNOWN = [
    filled,
    filled_with_false,
    expanded,
    transposed,
    factored,
    selected,
    least,
    of_whole_matrices,
    refilled,
]


@pytest.mark.parametrize("question", KNOWN, ids=lambda one: one.__name__)
def test_known_at_every_size(journal, question):
    def program(x):
        return (x + 1 if question(x) else x - 1).sin()

    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    for count in (4, 7, 9):
        x = torch.randn(count, 3)
        assert torch.equal(compiled(x), program(x))
    assert [record.outcome for record in journal.records()] == ["graph", "graph"]


def summed(x):
    return torch.ones(x.shape[0]).sum() > 5


def counted(x):
    return (torch.arange(x.shape[0]) > 5).any()


def looked_at(x):
    return (torch.ones(x.shape[0]) * x[0, 0] > 0).all()


def rearranged(x):
    return torch.eye(2).expand(x.shape[0], 2, 2).reshape(-1)[5] == 0


UNKNOWN = [summed, counted, looked_at, rearranged]


@pytest.mark.filterwarnings("ignore::braze.errors.BrazeWarning")
@pytest.mark.parametrize("question", UNKNOWN, ids=lambda one: one.__name__)
def test_what_sizes_decide_is_asked(question):
    def program(x):
        return x + 1 if question(x) else x - 1

    compiled = braze.compile(program, backend="aot_eager", dynamic=True)
    for count in (4, 7, 9):
        x = torch.randn(count, 3)
        assert torch.equal(compiled(x), program(x))
    with pytest.raises(GraphBreakError):
        braze.compile(program, backend="aot_eager", dynamic=True, fullgraph=True)(torch.ones(4, 3))


def test_of_no_element_all_is_true():
    def program(x):
        return x.sum() + (1 if torch.full((x.shape[0],), False).all() else 2)

    compiled = braze.compile(program, backend="aot_eager")
    for count in (0, 4, 0, 7, 0):
        x = torch.ones(count, 3)
        assert torch.equal(compiled(x), program(x))
