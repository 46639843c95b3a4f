"""A short run of the training steps; the long one is `make fuzz`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fuzz.isolation import check_training_seeds
from tests.fuzz.training_plans import plan_training
from tests.fuzz.training_runs import _parted, _run, check_training

PROGRAMS = 8


@pytest.mark.parametrize("first", (0, PROGRAMS))
def test_no_difference(first: int) -> None:
    seeds = range(first, first + PROGRAMS)
    found = {seed: str(made) for seed, made in check_training_seeds(seeds) if made}
    assert not found, "python -m tests.fuzz --training --seed N shows each: " + repr(found)


def test_plans_follow_from_their_seeds() -> None:
    assert [plan_training(seed) for seed in range(50)] == [plan_training(n) for n in range(50)]


def test_what_a_reentrant_checkpoint_refuses_is_compared() -> None:
    plan = replace(plan_training(0), checkpoint="reentrant", checkpoint_at=0, penalty=True)
    first = next(_run(plan, lambda step: step))
    assert "use_reentrant=True" in first[0][1]
    assert check_training(plan) is None


@pytest.mark.parametrize(
    "changed",
    [{"to_none": False}, {"clips": ""}, {"writes": True}, {"averages": False}, {"schedule": ""}],
    ids=str,
)
def test_runs_differ(changed: dict[str, object]) -> None:
    """What another plan does is seen by the second step."""
    base = replace(
        plan_training(1),
        layers=("linear", "tanh"),
        optimizer="SGD",
        options=(("momentum", 0.9),),
        is_frozen=False,
        is_scaled=False,
        clips="value",
        averages=True,
        checkpoint="",
        penalty=False,
        schedule="step",
        to_none=True,
        writes=False,
    )
    runs = [list(_run(plan, lambda step: step)) for plan in (base, replace(base, **changed))]
    assert _parted(runs[0][-1], list(runs[0][-1])) is None
    assert any(_parted(left, right) for left, right in zip(*runs)) is (
        changed != {"to_none": False}
    )
