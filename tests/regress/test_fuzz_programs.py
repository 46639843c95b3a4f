"""The smallest programs for what the fuzz found: `python -m tests.fuzz --seed N --keep NAME`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.program import parse
from tests.fuzz.runner import check

PROGRAMS = sorted((Path(__file__).parent / "fuzz").glob("*.txt"))


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_no_difference(path: Path) -> None:
    difference = check(parse(path.read_text()))
    assert difference is None, difference
