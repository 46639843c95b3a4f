"""Products of matrices with what follows as one kernel: by Triton's interpreter, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import alternatives, generate, host_sources, supports
from braze.ir.kernels import unaligned_rows as odd_rows
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule
from braze.lower import lower
from braze.rewrite import rewrite
from braze.schedule import CUDA, schedule
from braze.tracing import Tracer
from tests.unit.codegen.triton_running import (
    MARKS,
    OPTIONS,
    run_sources,
)

pytestmark = MARKS


def planned(
    function: Callable[..., Any], given: list[torch.Tensor], choice: bool = True
) -> tuple[LoopProgram, Schedule]:
    """The loop program of a function, and its schedule with every product that can be a kernel."""
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        results = function(*[tracer.add_input(x) for x in given])
        listed = list(results) if isinstance(results, tuple) else [results]
        finished = tracer.finish(listed)
    made = lower(rewrite(finished.graph, OPTIONS), OPTIONS, supports)
    return made, schedule(made, OPTIONS, CUDA, lambda ways: min(int(choice), len(ways) - 1))


def _products(plan: Schedule) -> list[Kernel]:
    return [s for s in plan.steps if isinstance(s, Kernel) and s.product is not None]


def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A layer and its activation."""
    return F.gelu(F.linear(x, w, b))


def _heads(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """(batch, length, features) -> (batch, heads, length, 8), times two."""
    made = F.linear(x, w, b).view(*x.shape[:2], -1, 8).transpose(1, 2)
    return made * 2 + 1


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "linear and gelu": (linear, [(70, 40), (33, 40), (33,)]),
    "of three dimensions": (linear, [(3, 20, 64), (128, 64), (128,)]),
    "residual": (lambda x, w, y: torch.mm(x, w) + y, [(128, 48), (48, 64), (128, 64)]),
    "residual of a row": (lambda x, w, y: torch.mm(x, w) * y, [(20, 16), (16, 9), (1, 9)]),
    "left transposed": (lambda x, w: torch.mm(x.t(), w).relu(), [(16, 20), (16, 9)]),
    "a slice": (lambda x, w: torch.mm(x[2:, 4:20], w).relu(), [(12, 24), (16, 9)]),
    "another order": (_heads, [(2, 10, 24), (16, 24), (16,)]),
    "batches": (lambda x, y: torch.bmm(x, y).sigmoid(), [(3, 20, 16), (3, 16, 24)]),
    "batches with a sum": (
        lambda z, x, y: torch.baddbmm(z, x, y).tanh(),
        [(3, 1, 24), (3, 20, 16), (3, 16, 24)],
    ),
    "transposed batches": (
        lambda x, y: torch.bmm(x, y.transpose(1, 2)) * 0.125,
        [(2, 20, 16), (2, 24, 16)],
    ),
    "a batch of one": (lambda x, y: torch.bmm(x, y).relu(), [(1, 20, 16), (1, 16, 24)]),
    "the result, too": (lambda x, w: ((y := torch.mm(x, w)), y.exp()), [(20, 16), (16, 9)]),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_results_are_eagers(name: str, dtype: torch.dtype) -> None:
    function, shapes = CASES[name]
    torch.manual_seed(0)
    given = [(torch.randn(shape) / 2).to(dtype) for shape in shapes]
    made, plan = planned(function, given)
    assert len(_products(plan)) == 1 and len(plan.steps) == 1, print_schedule(plan)
    found = run_sources(made, plan, generate(plan, OPTIONS), given)
    wanted = function(*given)
    for mine, right in zip(found, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert mine.stride() == right.stride()
        torch.testing.assert_close(mine, right, **_TOLERANCES[dtype])


_TOLERANCES: dict[torch.dtype, dict[str, float]] = {
    torch.float32: {"atol": 1e-5, "rtol": 1e-5},
    torch.float16: {"atol": 2e-3, "rtol": 2e-3},
    torch.bfloat16: {"atol": 2e-2, "rtol": 2e-2},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_candidate_of_tuning(dtype: torch.dtype) -> None:
    given = [(torch.randn(shape) / 2).to(dtype) for shape in [(70, 40), (33, 40), (33,)]]
    made, plan = planned(linear, given)
    (ways,) = alternatives(plan, OPTIONS)
    assert len({launch.function for launch in ways}) == len(ways) >= 4
    wanted = linear(*given)
    for launch in ways:
        (found,) = run_sources(made, plan, host_sources(plan, [(launch,)]), given)
        torch.testing.assert_close(found, wanted, **_TOLERANCES[dtype])


@pytest.mark.parametrize("name", ["mm", "addmm"])
def test_rows_of_any_alignment_without_tuning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result whose rows the library would write slowly, with nothing to fuse."""
    monkeypatch.setattr(odd_rows, "_LEAST_BYTES", 2 * 128 * 75)
    torch.manual_seed(0)
    given = [(torch.randn(shape) / 4).bfloat16() for shape in [(130, 256), (75, 256), (75,)]]

    def function(x: Any, w: Any, b: Any = None) -> Any:
        return torch.mm(x, w.t()) if b is None else torch.addmm(b, x, w.t())

    given = given if name == "addmm" else given[:2]

    made, plan = planned(function, given, choice=False)
    assert len(_products(plan)) == 1 == len(plan.steps), print_schedule(plan)
    (found,) = run_sources(made, plan, generate(plan, OPTIONS), given)
    torch.testing.assert_close(found, function(*given), **_TOLERANCES[torch.bfloat16])


def test_more_blocks_than_a_group_of_rows() -> None:
    given = [torch.randn(1300, 16).half() / 4, torch.randn(16, 300).half() / 4]
    made, plan = planned(lambda x, w: torch.mm(x, w).relu(), given)
    (found,) = run_sources(made, plan, generate(plan, OPTIONS), given)
    torch.testing.assert_close(found, torch.mm(*given).relu(), atol=2e-3, rtol=2e-3)


def _written(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.copy_(torch.mm(x, w).relu())
    return w + 1


KEPT: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "two readers": (
        lambda x, w: ((y := torch.mm(x, w)).relu(), y.t().exp().sum(1)),
        [(20, 16), (16, 9)],
    ),
    "a fold": (lambda x, w: torch.mm(x, w).softmax(1), [(20, 16), (16, 9)]),
    "a part of it": (lambda x, w: torch.mm(x, w)[:, 1:].exp(), [(20, 16), (16, 9)]),
    "an element twice": (
        lambda x, w: torch.mm(x, w).unsqueeze(0).expand(2, 20, 9).exp() * 3,
        [(20, 16), (16, 9)],
    ),
    "with its transpose": (lambda x, w: (y := torch.mm(x, w)) + y.t(), [(9, 16), (16, 9)]),
    "written in place": (_written, [(16, 16), (16, 16)]),
    "nothing behind": (torch.mm, [(20, 16), (16, 9)]),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_left_to_the_library(name: str) -> None:
    function, shapes = KEPT[name]
    given = [torch.randn(shape) for shape in shapes]
    _, plan = planned(function, [x.clone() for x in given])
    assert not _products(plan)
    assert sum(isinstance(step, ExternStep) for step in plan.steps) >= 1


def test_only_what_is_chosen() -> None:
    given = [torch.randn(20, 16), torch.randn(16, 9)]
    _, plan = planned(lambda x, w: torch.mm(x, w).relu(), given, choice=False)
    assert not _products(plan)


def test_steps_that_write_in_place_are_still_the_last() -> None:
    def step(x: torch.Tensor, w: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x, w).relu()
        p.mul_(2)
        return y

    given = [torch.randn(20, 16), torch.randn(16, 9), torch.randn(8)]
    _, plan = planned(step, given)
    (kernel,) = _products(plan)
    assert plan.steps.index(kernel) < plan.settled == len(plan.steps) - 1
