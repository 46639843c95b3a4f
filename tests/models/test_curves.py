"""The first steps of the two trainings whose whole curves are in docs/curves.png."""

from __future__ import annotations

from dataclasses import replace

import pytest
from benchmarks.curves import TASKS, Task, parting, train

import braze
from braze.trace import Journal


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_curves_stay_together(journal: Journal, task: Task) -> None:
    task = replace(task, steps=40)
    eager = train(task, lambda step: step)
    compiled = train(task, lambda step: braze.compile(step, fullgraph=True))
    assert eager.losses[-1] < 0.8 * eager.losses[0]
    assert parting(eager, compiled) < 0.01
    assert len(journal.records()) == 2
