"""A part of the sweep over NumPy; `python -m tests.surface.numpy_functions` asks all of it."""

from __future__ import annotations

import pytest

from tests.surface.numpy_functions import cases, lines, part_of, sweep

PARTS = 1200


@pytest.mark.parametrize("number", range(4))
def test_numpy_s_functions_give_what_numpy_gives(number: int) -> None:
    tally = sweep(part_of(cases(), number, PARTS))
    assert not tally.differences
    assert tally.asked > 35
    assert tally.whole > tally.asked // 10


def test_lines_are_of_every_function() -> None:
    found = {line.partition("(")[0] for line in lines()}
    assert {"r = np.sum", "r = np.linalg.norm", "r = np.fft.rfft", "r = a.std"} <= found
    assert len(found) > 500
