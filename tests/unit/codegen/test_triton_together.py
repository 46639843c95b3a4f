"""Kernels of one form are started together: by Triton's interpreter, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from braze.codegen.triton import generate, together
from braze.ir.kernels.kernel import Launch
from braze.ir.kernels.schedule import Kernel, Schedule
from tests.unit.codegen.test_triton_products import planned
from tests.unit.codegen.triton_running import (
    MARKS,
    ON_DEVICE,
    OPTIONS,
    run_sources,
)

pytestmark = MARKS


def _launches(plan: Schedule) -> list[Launch]:
    return [launch for step in generate(plan, OPTIONS).launches for launch in step]


def _is_several(launch: Launch) -> bool:
    return "a1_p0" in launch.function.text


def _checked(function: Callable[..., object], given: Sequence[torch.Tensor]) -> Schedule:
    """Results and written inputs are eager's."""
    program, plan = planned(function, given)
    mine, theirs = [[x.clone() for x in given] for _ in range(2)]
    found = run_sources(program, plan, generate(plan, OPTIONS), mine)
    right = function(*theirs)
    assert isinstance(right, tuple)
    kept = ([], []) if ON_DEVICE else (mine, theirs)  # a device has copies of its own
    for a, b in zip([*found, *kept[0]], [*right, *kept[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    return plan


def _step(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Momentum, with a count for each parameter."""
    for parameter, gradient, moment, count in zip(*(given[n::4] for n in range(4)), strict=True):
        count.add_(1)
        moment.mul_(0.9).add_(gradient)
        parameter.sub_(moment / (1 - 0.9**count))
    return ()


def _parameters(sizes: Sequence[int]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    made = []
    for size in sizes:
        made += [torch.randn(size, 40) for _ in range(3)] + [torch.ones(())]
    return made


def test_a_step_of_an_optimizer_is_few_launches() -> None:
    sizes = (3, 640, 50, 700, 16, 33, 810, 12, 5)
    plan = _checked(_step, _parameters(sizes))
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    launches = _launches(plan)
    assert len(launches) < len(kernels) - 3
    assert any(_is_several(launch) for launch in launches)


def test_what_needs_another_one_comes_behind_it() -> None:
    """Three chains of four links each: the links beside each other are started together."""

    def chains(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = list(given)
        for _ in range(4):
            made = [x.sin() + x.mean(1, keepdim=True) for x in made]
        return tuple(made)

    torch.manual_seed(0)
    plan = _checked(chains, [torch.randn(rows, 8) for rows in (128, 256, 384)])
    assert len(_launches(plan)) < len(plan.steps)
    alone = torch.randn(128, 8)
    one = _checked(chains, [alone])
    assert len(_launches(one)) == len(one.steps)


def test_bytes_of_the_arena_that_are_used_again_keep_the_order() -> None:
    plan = _checked(_step, _parameters((3, 640, 50, 700, 16)))
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    first, *rest = [k for k in kernels if k.phases[0].loops]
    moment = next(iter(together._written(first)))
    apart, same = {moment: (0, 64)}, {moment: (0, 64)}
    for number, kernel in enumerate(rest, 1):
        for buffer in together._written(kernel):
            apart[buffer], same[buffer] = (64 * number, 64 * number + 64), (32, 96)
    for slots, earliest in ((apart, 0), (same, 1)):
        groups = together._Groups(slots)
        groups._note(0, first, together._written(first))
        assert groups._earliest(rest[0], together._written(rest[0])) == earliest


def test_runs_between_library_calls_are_apart() -> None:
    def steps(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = []
        for number in range(0, len(given), 2):
            made.append((given[number] @ given[number + 1]).relu())
        return tuple(made)

    torch.manual_seed(0)
    plan = _checked(steps, [torch.randn(8, 8) for _ in range(10)])
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    launches = _launches(plan)
    assert len(launches) == len(kernels) == 5


def test_large_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    _, plan = planned(_step, _parameters((3, 640, 50, 700, 16, 33, 810, 12, 5)))
    before = len(_launches(plan))
    monkeypatch.setattr(together, "_MOST_BYTES", 1000)
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    assert before < len(_launches(plan)) <= len(kernels)


def test_a_launch_takes_so_many_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    given = _parameters([3 + 16 * n for n in range(20)])
    _, plan = planned(_step, given)
    before = _launches(plan)
    monkeypatch.setattr(together, "_MOST_ARGUMENTS", 30)
    after = _launches(_checked(_step, given))
    assert len(after) > len(before)
    assert max(len(launch.arguments) for launch in after if _is_several(launch)) <= 30
