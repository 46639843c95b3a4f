"""Gradients of every operator of PyTorch's test database, of every other one with one sample; the
list of failures may only shrink.

To look into one operator: `python -m tests.differential.gradient_sweep --ops NAME`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from braze.compat.torch.versions import TORCH
from tests.differential.gradient_sweep import differentiable_operators, sweep_gradients
from tests.differential.listed import outdated
from tests.shares import due_today

KNOWN_FAILURES = Path(__file__).with_name("gradient_sweep_failures.txt")
DEFAULT_SAMPLES = 1
SAMPLES = int(os.environ.get("BRAZE_SWEEP_SAMPLES", DEFAULT_SAMPLES))
PARTS = 12
EVERY = 2 if SAMPLES == DEFAULT_SAMPLES else 1


def known_failures() -> dict[str, str]:
    """operator -> reason."""
    lines = [line for line in KNOWN_FAILURES.read_text().splitlines() if line[:1] not in "#"]
    return {name: reason for name, _, reason in (line.partition(": ") for line in lines)}


@pytest.mark.slow
@pytest.mark.parametrize("part", due_today(range(PARTS), 3))
def test_gradients(part: int) -> None:
    table, known = differentiable_operators(), known_failures()
    names = list(table)[part * EVERY :: PARTS * EVERY]
    outcomes = [sweep_gradients(table[name], SAMPLES) for name in names]
    new = [f"{o.name}: {o.failure}" for o in outcomes if o.failure and o.name not in known]
    assert not new, "\n".join(new)
    fixed = outdated([o.name for o in outcomes if not o.failure and o.name in known])
    assert not fixed or SAMPLES != DEFAULT_SAMPLES, f"pass now; take them off the list: {fixed}"


def test_failures_are_few_and_explained() -> None:
    known, table = known_failures(), differentiable_operators()
    assert len(known) < 0.03 * len(table)
    assert all(known.values())
    # An older database lacks some of the operators.
    assert known.keys() <= table.keys() or TORCH < (2, 13)
