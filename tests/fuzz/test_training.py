"""A short run of the training steps; the long one is `make fuzz`."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from tests.fuzz.isolation import check_programs, check_training_seeds, described
from tests.fuzz.state import TensorState
from tests.fuzz.training_loops import generate_loop
from tests.fuzz.training_plans import plan_training
from tests.fuzz.training_runs import _parted, _run, check_training
from tests.fuzz.world import run_world

PROGRAMS = 8


@pytest.mark.parametrize("first", (0, PROGRAMS))
def test_no_difference(first: int) -> None:
    seeds = range(first, first + PROGRAMS)
    if found := described(check_training_seeds(seeds)):
        pytest.fail("python -m tests.fuzz --training --seed N shows each:\n" + found)


def test_plans_follow_from_their_seeds() -> None:
    assert [plan_training(seed) for seed in range(50)] == [plan_training(n) for n in range(50)]


@pytest.mark.slow
def test_no_difference_in_programs() -> None:
    if found := described(check_programs(range(30), generate_loop)):
        pytest.fail("python -m tests.fuzz --loops --seed N shows each:\n" + found)


def test_programs_follow_from_their_seeds() -> None:
    for seed in range(30):
        program = generate_loop(seed)
        assert generate_loop(seed) == program
        for text in (program.text, *program.steps):
            ast.parse(text)


def test_programs_train() -> None:
    """Most steps raise nothing, and leave gradients."""
    records = [record for seed in range(30) for record in run_world(generate_loop(seed), None)]
    calls = [record for record in records if record.step.startswith("run(")]
    assert sum(not record.error for record in calls) > 0.6 * len(calls)
    gradients = [
        {
            path
            for path, what in record.state
            if path.endswith(".grad") and type(what) is TensorState
        }
        for record in calls
    ]
    assert sum(map(bool, gradients)) > 0.5 * len(calls)


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
