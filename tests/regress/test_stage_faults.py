"""Common programs at which a stage of the compiler failed: compiled now, and right.

Found by users' programs: attention behind attention, and the index of a maximum whose value nobody
reads.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import braze
from braze.trace import Journal


def chained_softmax(x: Tensor) -> Tensor:
    return torch.softmax(torch.softmax(x @ x, -1) @ x, -1) @ x


def thrice_chained_softmax(x: Tensor) -> Tensor:
    return torch.softmax(chained_softmax(x) @ x.mT, -1) @ x


PROGRAMS: list[tuple[Callable[[Tensor], object], tuple[int, ...]]] = [
    (chained_softmax, (128, 128)),
    (thrice_chained_softmax, (128, 128)),
    (lambda x: F.log_softmax(x + 1, 1).max(1)[1], (4, 33)),
    (lambda x: torch.sigmoid(x).min(-1, keepdim=True)[1], (128, 7)),
    (lambda x: torch.softmax(x, 1).max(1)[1], (5, 4, 9)),
    (lambda x: (x.exp().max(1)[1], x.exp().argmin(1), x.exp().sum(1)), (3, 1000)),
]


@pytest.mark.parametrize("case", range(len(PROGRAMS)))
def test_no_stage_fails(case: int, journal: Journal) -> None:
    program, shape = PROGRAMS[case]
    x = torch.randn(shape)
    torch.testing.assert_close(braze.compile(program)(x), program(x))
    (record,) = journal.records()
    assert record.outcome == "graph"
    assert not record.fallbacks
    assert record.counters["kernels"]
