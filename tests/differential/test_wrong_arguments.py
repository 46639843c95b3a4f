"""A part of the sweep of wrong arguments; all of it: `python -m tests.differential.wrong_arguments`
or, in parts side by side, with BRAZE_ALL_WRONG_ARGUMENTS set."""

from __future__ import annotations

import os

import pytest

from tests.differential.wrong_arguments import KINDS, Tally, sweep_apart, swept_operators

# One of each kind of check: positions, classes, masks, dtypes, memory, numbers, several results.
_PART = (
    "gather take index_select scatter_add index_put masked_fill where lerp cat floor_divide "
    "nn.functional.embedding nn.functional.one_hot nn.functional.nll_loss "
    "nn.functional.huber_loss max_pool2d_with_indices_backward"
).split()
_IS_ALL = "BRAZE_ALL_WRONG_ARGUMENTS" in os.environ
_PARTS = 16


@pytest.mark.parametrize("part", range(_PARTS if _IS_ALL else 3))
def test_wrong_arguments_are_refused_as_by_eager(part: int) -> None:
    table = swept_operators()
    names = list(table) if _IS_ALL else [name for name in _PART if name in table]
    tally = Tally()
    for name in names[part :: _PARTS if _IS_ALL else 3]:
        tally.add(sweep_apart(name, KINDS, samples=1, every=0))
    assert sum(tally.refused.values()) > 50
    assert not tally.wrong_count, "\n".join(
        line for lines in tally.wrong.values() for line in lines
    )
