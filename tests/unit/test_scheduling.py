"""Tests go to workers as by `--dist loadgroup`, and what has run is forgotten."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xdist")
from tests.scheduling import WithoutFinishedGroups

NAMES = [f"a.py::test[{n}]" + "@group" * (n % 5 == 0) for n in range(60)]


class Worker:
    """Notes which tests it is given, and runs one when it is told."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.given: list[int] = []
        self.ran: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, tests: list[int]) -> None:
        self.given += tests

    def shutdown(self) -> None:
        self.shutting_down = True


def run(kind: Any) -> tuple[list[list[int]], int]:
    """What each of two workers ran, and how many groups a worker had at most."""
    options = SimpleNamespace(tx=["2*popen"], loadscopereorder=True, maxprocesses=None)
    config = SimpleNamespace(option=options, getvalue=lambda name: getattr(options, name))
    workers, chosen, most = [Worker("first"), Worker("second")], random.Random(0), 0
    made = kind(config, None)
    for worker in workers:
        made.add_node(worker)
    for worker in workers:
        made.add_node_collection(worker, NAMES)
    made.schedule()
    while busy := [w for w in workers if len(w.ran) < len(w.given)]:
        worker = chosen.choice(busy)
        test = worker.given[len(worker.ran)]
        worker.ran.append(test)
        made.mark_test_complete(worker, test)
        most = max(most, *(len(work) for work in made.assigned_work.values()))
    assert made.tests_finished and not made.has_pending
    assert all(worker.shutting_down for worker in workers)
    return [worker.ran for worker in workers], most


def test_workers_run_what_they_would() -> None:
    base: Any = WithoutFinishedGroups.__base__
    (ours, few), (theirs, many) = run(WithoutFinishedGroups), run(base)
    assert ours == theirs
    assert sorted(itertools.chain(*ours)) == [*range(len(NAMES))]
    assert few <= 4 and many > 20
