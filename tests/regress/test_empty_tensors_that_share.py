"""Two empty tensors over one storage, one of them written to: capture took them for apart, and the
guard for one, so that the call was left to eager as if a guard were unstable."""

import warnings

import torch

import braze
from braze.trace import Journal


def added(x, y):
    x.add_(1)
    return y * 2


def test_the_guard_agrees_with_capture() -> None:
    for rows in (0, 2):
        whole = torch.zeros(rows, 3)
        with warnings.catch_warnings(record=True) as warned:
            found = braze.compile(added)(whole.detach(), whole)
        assert torch.equal(found, torch.full((rows, 3), 2.0))
        assert not [w for w in warned if "unstable-guard" in str(w.message)]


def test_empty_ones_apart_are_compiled(journal: Journal) -> None:
    compiled = braze.compile(added, fullgraph=True)
    for _ in range(3):
        compiled(torch.zeros(0, 3), torch.zeros(0, 3))
    assert [r.outcome for r in journal.records()] == ["graph"]
