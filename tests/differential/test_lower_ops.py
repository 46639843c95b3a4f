"""Every operator of PyTorch's test database through lowering; the list of failures may only
shrink. What the families that loops are made for leave to ATen is judged by `test_op_sweep`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.differential.lower_ops import (
    DTYPES,
    check_operator,
    fails_in_trace,
    operators,
)
from tests.shares import due_today

KNOWN_FAILURES = Path(__file__).with_name("lower_ops_failures.txt")
SAMPLES = int(os.environ.get("BRAZE_SWEEP_SAMPLES", "1"))


def known_failures() -> dict[str, str]:
    """operator and dtype -> reason."""
    entries = {}
    for line in KNOWN_FAILURES.read_text().splitlines():
        if line and not line.startswith("#"):
            key, _, reason = line.partition(": ")
            entries[key] = reason
    return entries


@pytest.mark.parametrize(
    ("number", "name"),
    due_today([pytest.param(n, name, id=name) for n, name in enumerate(operators())], 2),
)
def test_operator(number: int, name: str) -> None:
    """In each dtype; with one sample of most operators in the first that it has alone, since
    `test_op_sweep` runs what is lowered here in all of them."""
    op, known = operators()[name], known_failures()
    dtypes = [dtype for dtype in DTYPES if dtype in op.supported_dtypes("cpu")]
    for dtype in dtypes if SAMPLES > 1 or number % 3 == 0 else dtypes[:1]:
        outcome = check_operator(name, op, dtype, SAMPLES)
        if outcome.key in known:
            assert outcome.failure or SAMPLES < 10, f"{outcome.key} passes: take it off the list"
        else:
            assert not outcome.failure, f"{outcome.key}: {outcome.failure}"


def test_failures_are_few() -> None:
    pairs = sum(dtype in op.dtypes for op in operators().values() for dtype in DTYPES)
    assert len(known_failures()) < 0.05 * pairs


def test_reasons_are_given() -> None:
    assert all(known_failures().values())


def test_a_data_dependent_call_is_skipped() -> None:
    assert fails_in_trace(torch.nonzero, (torch.ones(3), (), {}))
