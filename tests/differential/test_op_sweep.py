"""Every operator of the OpInfo database, compiled; the list of failures may only shrink."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.differential.op_sweep import DTYPES, operators, sweep_operator

KNOWN_FAILURES = Path(__file__).with_name("op_sweep_failures.txt")
SAMPLES = int(os.environ.get("BRAZE_SWEEP_SAMPLES", "1"))


def known_failures() -> dict[str, str]:
    """operator and dtype -> reason."""
    entries = {}
    for line in KNOWN_FAILURES.read_text().splitlines():
        if line and not line.startswith("#"):
            key, _, reason = line.partition(": ")
            entries[key] = reason
    return entries


@pytest.mark.parametrize("name", list(operators()))
def test_operator(name: str) -> None:
    op, known = operators()[name], known_failures()
    for dtype in DTYPES:
        if dtype not in op.dtypes:
            continue
        outcome = sweep_operator(op, dtype, SAMPLES)
        if outcome.key in known:
            continue
        assert not outcome.failure, f"{outcome.key}: {outcome.failure}"


def test_failures_are_few() -> None:
    pairs = sum(dtype in op.dtypes for op in operators().values() for dtype in DTYPES)
    assert len(known_failures()) < 0.05 * pairs
