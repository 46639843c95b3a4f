"""Nothing planted or damaged is run, crashes or hangs; what may be used is, and built anew.

BRAZE_PLANTS=all tries every way, not every fifth and some of each table.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.unit.cache.plants import Plant, all_plants

pytestmark = [
    pytest.mark.skipif(
        not os.path.isdir("/proc/self/fd"), reason="file systems of other systems differ"
    ),
    pytest.mark.xdist_group("planted"),  # the ways are tried once, not once a process
]

# One or more of each table, and the eight ways that were found by hand.
_ALWAYS = (
    "parent of attacker 0755",
    "cache of root 1777",
    "cache of victim 0777",
    "folder of victim 0775",
    "entry of victim 0666",
    "cache a link of attacker to attacker",
    "cache a link of attacker to victim",
    "cache a link of victim to victim",
    "entry a link of victim to attacker's file",
    "lock a link to a file",
    "entry a pipe of victim",
    "entry a pipe of attacker",
    "lock a pipe of victim",
    "entry a sparse file of victim",
    "umask 000",
    "umask 002",
    "umask 777",
    "a good entry",
    "a good entry of root",
    "entry of another key",
    "object without a head",
)


def _chosen() -> list[Plant]:
    every = all_plants()
    if os.environ.get("BRAZE_PLANTS") != "all":
        every = [p for n, p in enumerate(every) if n % 5 == 0 or p.name in _ALWAYS]
    return [p for p in every if os.getuid() == 0 or not p.others]


PLANTS = _chosen()


@pytest.fixture(scope="module")
def outcomes() -> dict[str, dict[str, Any]]:
    """What came of each way, by its name."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.cache.planted"],
        input="\n".join(plant.name for plant in PLANTS),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return {found["name"]: found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.name)
def test_planted(plant: Plant, outcomes: dict[str, dict[str, Any]]) -> None:
    found = outcomes[plant.name]
    assert not found["ended"] and not found["planted"] and found["result"] == 7, found
    assert found["compiles"] == (0 if plant.hits else 1), found
    assert found["left"] == 0 and not found["modes"], found
    if plant.uses_cache is True:
        assert found["is_kept"] and not found["warned"], found
    elif plant.uses_cache is False:
        assert not found["is_kept"] and len(found["warned"]) == 1, found
        assert "BRAZE_CACHE_DIR" in found["warned"][0]


def test_the_ways_are_many() -> None:
    assert len(all_plants()) > 250
    assert os.getuid() or len(PLANTS) > 60
    assert {plant.name for plant in all_plants()}.issuperset(_ALWAYS)
