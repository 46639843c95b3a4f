"""A part of the sweep of writes around operators that raise; all of it:
`python -m tests.differential.writes_around_failures` or BRAZE_ALL_FAILING_OPERATORS set."""

from __future__ import annotations

import itertools
import os

import pytest

from tests.differential.writes_around_failures import cases_of, difference, swept_operators

_IS_ALL = "BRAZE_ALL_FAILING_OPERATORS" in os.environ
# Positions, rows, draws, factors, a library's checks, numbers.
_PART = "take gather index_put multinomial linalg.cholesky bincount nn.functional.embedding".split()
_NAMES = [*swept_operators()] if _IS_ALL else _PART


@pytest.mark.parametrize("name", _NAMES)
def test_writes_around_failure_are_eagers(name: str) -> None:
    cases = list(cases_of(swept_operators()[name], samples=2 if _IS_ALL else 1))
    assert cases or _IS_ALL
    for case, acts, reads in itertools.product(cases, (False, True), (False, True)):
        assert difference(case, acts, reads) is None
