"""Calls so deep that nothing can be compiled there run as they are written, and are no fault."""

from __future__ import annotations

import sys

import torch

import braze
from braze.trace import Journal


def test_calls_near_the_end_of_the_stack_run(journal: Journal) -> None:
    compiled = braze.compile(lambda x: x + 1, options={"suppress_errors": False}, backend="eager")

    def deeper(left: int) -> int:
        """How many calls have results, of one at each depth up to the end."""
        try:
            return deeper(left - 1) if left else 0
        except RecursionError:
            pass
        try:
            assert compiled(torch.ones(1)).tolist() == [2]
        except RecursionError:  # of the call itself, as in eager
            return 0
        return 1

    limit = sys.getrecursionlimit()
    deeper(limit)
    assert compiled(torch.ones(1)).tolist() == [2]
    assert "graph" in [record.outcome for record in journal.records()]
    found = [record.graph_break for record in journal.records() if record.graph_break]
    assert {each.code for each in found} <= {"recursion"}
