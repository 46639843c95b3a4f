"""Every operator of PyTorch's test database through lowering; the list of failures may only
shrink, and so may what the three families that loops are made for leave to ATen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.differential.lower_ops import (
    DTYPES,
    Outcome,
    check_operator,
    fails_in_trace,
    operators,
)

KNOWN_FAILURES = Path(__file__).with_name("lower_ops_failures.txt")
SAMPLES = int(os.environ.get("BRAZE_SWEEP_SAMPLES", "2"))
# Share of operator and dtype pairs lowered without any ATen call, complex results aside.
LEAST_SHARE = {"pointwise": 0.92, "reduction": 0.95, "view": 0.95}
COMPLEX_RESULTS = frozenset({"complex", "polar", "cdouble", "cfloat", "chalf"})


def known_failures() -> dict[str, str]:
    """operator and dtype -> reason."""
    entries = {}
    for line in KNOWN_FAILURES.read_text().splitlines():
        if line and not line.startswith("#"):
            key, _, reason = line.partition(": ")
            entries[key] = reason
    return entries


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[str, Outcome]]:
    """What each test of this module found, for those that look at all of it."""
    yield {}


@pytest.mark.parametrize("name", list(operators()))
def test_operator(name: str, outcomes: dict[str, Outcome]) -> None:
    op, known = operators()[name], known_failures()
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        outcome = check_operator(name, op, dtype, SAMPLES)
        outcomes[outcome.key] = outcome
        if outcome.key in known:
            assert outcome.failure or SAMPLES < 10, f"{outcome.key} passes: take it off the list"
        else:
            assert not outcome.failure, f"{outcome.key}: {outcome.failure}"


def test_failures_are_few() -> None:
    pairs = sum(dtype in op.dtypes for op in operators().values() for dtype in DTYPES)
    assert len(known_failures()) < 0.05 * pairs


@pytest.mark.parametrize("family", list(LEAST_SHARE))
def test_share_of_own_loops(family: str, outcomes: dict[str, Outcome]) -> None:
    ran = [
        outcome
        for outcome in outcomes.values()
        if outcome.family == family and outcome.samples and outcome.name not in COMPLEX_RESULTS
    ]
    if len(ran) < 20:
        pytest.skip("needs the operators' own tests to have run")
    own = sum(not outcome.externs for outcome in ran)
    assert own / len(ran) >= LEAST_SHARE[family], f"{own} of {len(ran)}"


def test_reasons_are_given() -> None:
    assert all(known_failures().values())


def test_a_data_dependent_call_is_skipped() -> None:
    assert fails_in_trace(torch.nonzero, (torch.ones(3), (), {}))
