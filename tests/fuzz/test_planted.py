"""The fuzz finds bugs planted in capture: a few quickly; all of them in `make fuzz`."""

from __future__ import annotations

import pytest

from tests.fuzz.planted import BUGS, programs_until_found

# Those that are found early.
QUICK = (
    "guard left out: numbers",
    "guard left out: LENGTH",
    "wrong default of a new function",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    (bug,) = [bug for bug in BUGS if bug.name == name]
    assert programs_until_found(bug, 200) is not None


def test_bugs_have_names_of_their_own() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 30
