"""The surface of Python objects: questions to them, asked again after what they depend on changed.

A part runs with the suite; `BRAZE_SURFACE=all` runs every case, and
`python -m tests.surface.test_changes 600 7` for 600 seconds, in an order drawn by the seed 7.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable

import pytest

from tests.surface.asking import REPETITIONS, Case, difference
from tests.surface.attribute_changes import attribute_cases
from tests.surface.cache_changes import cache_cases
from tests.surface.container_changes import container_cases
from tests.surface.process_changes import process_cases

_SWEEPS: dict[str, tuple[Callable[[], dict[str, Case]], int]] = {
    "attributes": (attribute_cases, 11),
    "containers": (container_cases, 700),
    "process": (process_cases, 2),
    "caches": (cache_cases, 2),
}


def _chosen(sweep: str) -> list[tuple[str, Case]]:
    """Every case, or one of so many of them."""
    make, step = _SWEEPS[sweep]
    return [*make().items()][:: 1 if os.environ.get("BRAZE_SURFACE") == "all" else step]


def _differences(cases: list[tuple[str, Case]]) -> tuple[list[str], int]:
    """What differs, and in how many cases a graph was compiled."""
    found, graphs = [], []
    for index, (name, case) in enumerate(cases):
        repetitions = REPETITIONS[index % len(REPETITIONS)]
        problem = difference(case, repetitions, graphs)
        if problem is not None:
            found.append(f"{name}, {repetitions} times each: {problem}")
    return found, sum(map(bool, graphs))


@pytest.mark.slow
@pytest.mark.parametrize("sweep", _SWEEPS)
def test_objects_follow_what_changes(sweep: str) -> None:
    cases = _chosen(sweep)
    found, compiled = _differences(cases)
    assert not found, "\n".join(found)
    assert compiled > 0.9 * len(cases)


def test_sweep_has_many_changes() -> None:
    assert len(attribute_cases()) * 6 > 300
    assert len(process_cases()) + len(cache_cases()) > 150


def main() -> None:
    """Run cases in random order for some seconds and print what differs."""
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    cases = [case for make, _ in _SWEEPS.values() for case in make().items()]
    random.Random(seed).shuffle(cases)
    end, count = time.monotonic() + seconds, 0
    for count, (name, case) in enumerate(cases):  # noqa: B007
        if time.monotonic() > end:
            break
        for problem in _differences([(name, case)])[0]:
            print(problem, flush=True)
    print(f"{count} of {len(cases)} cases")


if __name__ == "__main__":
    main()
