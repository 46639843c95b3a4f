"""Every operator of PyTorch's test database, compiled; the list of failures may only shrink, and
so may what the families that Braze lowers itself leave to ATen.

Operators are swept in groups, so that the tests run side by side and a group can be judged as a
whole. To look into one operator: `python -m tests.differential.op_sweep --ops NAME`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.differential.listed import outdated
from tests.differential.op_sweep import DTYPES, Outcome, family_of, operators, sweep_operator
from tests.shares import todays

KNOWN_FAILURES = Path(__file__).with_name("op_sweep_failures.txt")
DEFAULT_SAMPLES = 1
SAMPLES = int(os.environ.get("BRAZE_SWEEP_SAMPLES", DEFAULT_SAMPLES))
THINNED = (torch.bool, torch.bfloat16)
# Least share of operator and dtype pairs that run without any ATen kernel.
LEAST_SHARE = {"pointwise": 0.95, "reduction": 0.95, "view": 0.97}
PARTS_OF_OTHER = 6
# Of these a run takes every third operator.
LONG = ("pointwise", "other")
SHARE = 3


def known_failures() -> dict[str, str]:
    """operator and dtype -> reason."""
    entries = {}
    for line in KNOWN_FAILURES.read_text().splitlines():
        if line and not line.startswith("#"):
            key, _, reason = line.partition(": ")
            entries[key] = reason
    return entries


def sweep(names: list[str]) -> list[Outcome]:
    """Every dtype of the operators; with the default count of samples the dtypes of `THINNED` only
    of every third operator."""
    table = operators()
    return [
        sweep_operator(table[name], dtype, SAMPLES)
        for number, name in enumerate(names)
        for dtype in DTYPES
        if dtype in table[name].dtypes
        and (SAMPLES > DEFAULT_SAMPLES or dtype not in THINNED or not number % 3)
    ]


def names_of(family: str) -> list[str]:
    """The operators of a family that are due."""
    names = [name for name, op in operators().items() if family_of(op) == family]
    return todays(names, SHARE) if family in LONG else names


def check_against_list(outcomes: list[Outcome]) -> None:
    """No failure that is not listed; no listed one that passes."""
    known = known_failures()
    new = [f"{o.key}: {o.failure}" for o in outcomes if o.failure and o.key not in known]
    assert not new, "\n".join(new)
    fixed = outdated([o.key for o in outcomes if not o.failure and o.key in known])
    assert not fixed or SAMPLES != DEFAULT_SAMPLES, f"pass now; take them off the list: {fixed}"


@pytest.mark.parametrize("family", list(LEAST_SHARE))
def test_families_run_by_own_kernels(family: str) -> None:
    outcomes = sweep(names_of(family))
    check_against_list(outcomes)
    ran = [o for o in outcomes if not o.failure]
    own = [o for o in ran if not o.extern_ops]
    left = sorted(o.key for o in ran if o.extern_ops)
    assert len(own) >= LEAST_SHARE[family] * len(ran), f"{len(own)} of {len(ran)}; by ATen: {left}"


@pytest.mark.parametrize("part", range(PARTS_OF_OTHER))
def test_other_operators(part: int) -> None:
    check_against_list(sweep(names_of("other")[part::PARTS_OF_OTHER]))


def test_failures_are_few_and_explained() -> None:
    pairs = sum(dtype in op.dtypes for op in operators().values() for dtype in DTYPES)
    assert len(known_failures()) < 0.05 * pairs
    assert all(known_failures().values())
