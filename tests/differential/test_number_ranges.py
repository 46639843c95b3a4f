"""Numbers that a dtype may not hold: operators raise on fake tensors what they raise in eager."""

from __future__ import annotations

import pytest

from tests.differential.number_ranges import differences, operators
from tests.shares import due_today

PARTS = 6


@pytest.mark.parametrize("part", due_today(range(PARTS), 3))
def test_operators_refuse_the_numbers_that_eager_refuses(part: int) -> None:
    count, refused, found = 0, 0, []
    for op in list(operators())[part::PARTS]:
        more = differences(op)
        count, refused, found = count + more[0], refused + more[1], found + more[2]
    assert not found, "\n".join(found[:20])
    assert count > 4000
    assert refused > 1000
