"""Gradients of gradients of every third operator of PyTorch's test database; the list of failures
may only shrink.

To look into one operator: `python -m tests.differential.double_gradient_sweep --ops NAME`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.differential.double_gradient_sweep import (
    sweep_double_gradients,
    twice_differentiable_operators,
)
from tests.differential.listed import outdated
from tests.shares import due_today

KNOWN_FAILURES = Path(__file__).with_name("double_gradient_sweep_failures.txt")
EVERY, PARTS = 3, 6


def known_failures() -> dict[str, str]:
    """operator -> reason."""
    lines = [line for line in KNOWN_FAILURES.read_text().splitlines() if line[:1] not in "#"]
    return {name: reason for name, _, reason in (line.partition(": ") for line in lines)}


@pytest.mark.slow
@pytest.mark.parametrize("part", due_today(range(PARTS), 3))
def test_double_gradients(part: int) -> None:
    table, known = twice_differentiable_operators(), known_failures()
    names = list(table)[::EVERY][part::PARTS]
    outcomes = [sweep_double_gradients(table[name]) for name in names]
    new = [f"{o.name}: {o.failure}" for o in outcomes if o.failure and o.name not in known]
    assert not new, "\n".join(new)
    fixed = outdated([o.name for o in outcomes if not o.failure and o.name in known])
    assert not fixed, f"pass now; take them off the list: {fixed}"
    assert sum(outcome.samples > 0 for outcome in outcomes) >= 22  # 150 in all and more


def test_failures_are_explained() -> None:
    known = known_failures()
    assert all(known.values()) and known.keys() <= twice_differentiable_operators().keys()
