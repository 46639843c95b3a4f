"""Rows shared by several programs: by Triton's interpreter, beside float64; and when they are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import alternatives, generate
from braze.ir.device_model import H200
from braze.ir.kernels.loops import LoopProgram, Scalar
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.schedule import CUDA, Target, schedule
from braze.schedule.target import gpu_target
from braze.shapes.expr import Symbol, as_expr
from tests.unit.codegen import programs
from tests.unit.codegen.triton_running import (
    MARKS,
    OPTIONS,
    check,
    planned,
    run_sources,
)

pytestmark = MARKS

Tensor = torch.Tensor

# A few rows are shared, too, whatever fits the cache; and not split into partial reductions.
SHARING = replace(CUDA, spread_bytes=1, enough_tasks=1)
PART = 8192
WIDE = 3 * PART


def _planned(
    function: Callable[..., Any], given: list[Tensor], target: Target = SHARING
) -> tuple[LoopProgram, Schedule, list[Tensor]]:
    return planned(function, given, target)


def _shared(plan: Schedule) -> list[Kernel]:
    return [s for s in plan.steps if isinstance(s, Kernel) and s.spread is not None]


def _norm(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return torch.ops.aten.native_layer_norm(x, [x.shape[-1]], w, w, 1e-5)


def _totals(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A value of the row is a result, and read again."""
    total = x.abs().sum(-1, keepdim=True)
    return total, x * w / total


def _extremes(x: Tensor, w: Tensor) -> Tensor:
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return (x - low) / (high - low) * w


def _scaled_twice(x: Tensor, w: Tensor) -> Tensor:
    x = x - x.amax(-1, keepdim=True)
    return x * w / x.abs().sum(-1, keepdim=True)


def _score(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """A pair, and a fold beside each half of it."""
    gap = x - x.mean(-1, keepdim=True)
    score = gap / gap.square().mean(-1, keepdim=True).sqrt()
    return score * w / x.amax(-1, keepdim=True), x.abs().sum(-1)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, w: torch.softmax(x, -1),
    "log_softmax": lambda x, w: torch.log_softmax(x, -1),
    "layer norm": _norm,
    "RMS norm": lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6),
    "extremes": _extremes,
    "totals": _totals,
    "scaled twice": _scaled_twice,
    "standard score": _score,
    "softmax of a sum": lambda x, w: torch.softmax(x * 2 + w, -1),
}


def _compare(function: Callable[..., Any], given: list[Tensor], target: Target = SHARING) -> None:
    """Ours at most twice as far from float64 as eager; NaN and infinities at the same places."""
    program, plan, used = _planned(function, given, target)
    assert len(_shared(plan)) == 1
    mine = run_sources(program, plan, generate(plan, OPTIONS), used)
    eager = function(*given)
    exact = function(*[x.double() for x in given])
    listed = [list(r) if isinstance(r, tuple) else [r] for r in (eager, exact)]
    for ours, theirs, right in zip(mine, *listed, strict=True):
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        finite = right.isfinite()
        assert torch.equal(ours.isfinite(), theirs.isfinite())
        assert torch.equal(ours.isnan(), theirs.isnan())
        gaps = [(r.double() - right)[finite].norm() for r in (ours, theirs)]
        scale = right[finite].norm() * torch.finfo(ours.dtype).eps
        assert gaps[0] <= 2 * gaps[1] + scale * 0.25, (gaps, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    _compare(FUNCTIONS[name], [torch.randn(3, WIDE).to(dtype), torch.randn(WIDE).to(dtype)])


@pytest.mark.parametrize("parts", [4, 5, 16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_numbers_of_parts(name: str, parts: int) -> None:
    torch.manual_seed(1)
    _compare(FUNCTIONS[name], [torch.randn(2, parts * PART), torch.randn(parts * PART)])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("columns", [WIDE, 4 * PART])
def test_rows_of_infinities_and_nan(name: str, columns: int) -> None:
    torch.manual_seed(2)
    x = torch.randn(8, columns)
    x[1] = -math.inf
    x[2, :PART] = -math.inf  # a part has nothing
    x[3, PART:] = -math.inf
    x[4, 17000] = math.nan
    x[5, 3] = math.inf
    x[6] *= 1e30
    x[7] = -math.inf
    x[7, -1] = 0.5
    _compare(FUNCTIONS[name], [x, torch.randn(columns)])


def _backward(dy: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)


@pytest.mark.parametrize(
    ("function", "length", "warps"),
    [
        (lambda x, y, z: torch.softmax(x, -1), PART, 8),
        (lambda x, y, z: _backward(x, torch.softmax(y, -1)), PART, 16),
        (lambda x, y, z: torch.softmax(x * y + z, -1), PART // 2, 16),
    ],
)
def test_what_is_read_of_each_row(function: Callable[..., Any], length: int, warps: int) -> None:
    """A thread holds 32 values, as far as a program has threads."""
    given = [torch.randn(2, WIDE) for _ in range(3)]
    _, plan, _ = _planned(function, given)
    kernel = _shared(plan)[-1]
    assert kernel.spread is not None and kernel.spread.length == length
    number = plan.steps.index(kernel)
    assert generate(plan, OPTIONS).launches[number][0].function.warps == warps


def test_two_things_are_read_of_each_row() -> None:
    torch.manual_seed(3)
    _compare(_backward, [torch.randn(2, WIDE), torch.softmax(torch.randn(2, WIDE), -1)])


def test_three_things_are_read_of_each_row() -> None:
    torch.manual_seed(3)
    _compare(lambda x, y, z: torch.softmax(x * y + z, -1), [torch.randn(2, WIDE) for _ in range(3)])


def test_more_than_one_axis_of_rows() -> None:
    torch.manual_seed(4)
    _compare(FUNCTIONS["softmax"], [torch.randn(2, 3, WIDE), torch.randn(WIDE)])


@pytest.mark.parametrize("rows", [1, 3])
def test_an_unknown_number_of_rows(rows: int) -> None:
    torch.manual_seed(5)
    m, columns = Symbol("s0", 1, None), WIDE
    i, j, r = (Symbol(name, 0, None) for name in "ijr")
    x, y = (programs.buffer(name, (as_expr(m), columns), stride=(columns, 1)) for name in "xy")  # type: ignore[arg-type]
    top, s = (programs.buffer(name, (as_expr(m),), stride=(1,)) for name in ("top", "s"))  # type: ignore[arg-type]
    over = ((i, as_expr(m)), (j, columns))

    def gap(place: Symbol) -> Scalar:
        shifted = apply("sub", programs.load(x, i, place), programs.load(top, i))
        return apply("exp", shifted)

    along: Any = ((r, columns),)
    statements = [
        programs.define(top, over[:1], programs.total("max", along, programs.load(x, i, r))),  # type: ignore[arg-type]
        programs.define(s, over[:1], programs.total("sum", along, gap(r))),  # type: ignore[arg-type]
        programs.define(y, over, apply("truediv", gap(j), programs.load(s, i))),  # type: ignore[arg-type]
    ]
    made = programs.program([x], statements, [y])
    assert _shared(schedule(made, OPTIONS, SHARING))
    check(made, [torch.randn(rows, columns)], SHARING)


@pytest.mark.parametrize(
    ("shape", "dtype", "shared"),
    [
        ((512, 131072), torch.float32, True),
        ((300, 131072), torch.float32, True),
        ((512, 12 * PART), torch.float32, True),
        ((512, 100004), torch.float32, False),  # parts do not fill the row
        ((512, 12 * PART + PART // 2), torch.float32, False),
        ((512, 11 * PART), torch.float32, False),  # what all processors walk is in the cache
        ((512, 131072), torch.bfloat16, False),
        ((512, 64 * PART), torch.float32, True),
        ((512, 65 * PART), torch.float32, False),  # too many programs
        ((4096, 4096), torch.float32, False),
    ],
)
def test_choice(shape: tuple[int, int], dtype: torch.dtype, shared: bool) -> None:
    plan = schedule(programs.softmax(*shape, dtype), OPTIONS, CUDA)
    assert bool(_shared(plan)) == shared
    assert ("a row over" in print_schedule(plan)) == shared


@pytest.mark.parametrize("columns", [16388, 20000, 5 * PART // 2, 50304, 100004])
def test_rows_that_parts_do_not_fill_are_walked(columns: int) -> None:
    plan = _planned(FUNCTIONS["softmax"], [torch.zeros(2, columns), torch.zeros(columns)])[1]
    assert any(isinstance(s, Kernel) and len(s.phases) > 1 for s in plan.steps)
    assert not _shared(plan)


@pytest.mark.parametrize(("between", "shared"), [(4, 1), (1, 0)])
def test_rows_are_aligned(between: int, shared: int) -> None:
    x = torch.zeros(2, WIDE + between)[:, :WIDE]
    assert len(_shared(_planned(lambda x: torch.softmax(x, -1), [x])[1])) == shared


@pytest.mark.parametrize(("processors", "shared"), [(132, 1), (16, 1), (15, 0)])
def test_all_programs_of_a_row_have_a_processor(processors: int, shared: int) -> None:
    target = gpu_target(replace(H200, processors=processors, cache_bytes=4 << 20))
    plan = schedule(programs.softmax(512, 131072), OPTIONS, target)
    assert len(_shared(plan)) == shared


@pytest.mark.parametrize("name", ["wide sums", "argmax"])
def test_refused(name: str) -> None:
    functions: dict[str, Callable[..., Any]] = {
        "wide sums": lambda x: x.double() - x.double().mean(-1, keepdim=True),
        "argmax": lambda x: x - x.argmax(-1, keepdim=True),
    }
    plan = _planned(functions[name], [torch.zeros(2, WIDE)])[1]
    assert any(isinstance(s, Kernel) and len(s.phases) > 1 for s in plan.steps)
    assert not _shared(plan)


def test_tuning_leaves_them() -> None:
    """A kernel that is timed by itself would find its arrivals counted."""
    plan = schedule(programs.softmax(512, 131072), OPTIONS, CUDA)
    assert [len(found) for found in alternatives(plan, OPTIONS)][1:] == [1]


def _meetings(function: Callable[..., Any]) -> list[str]:
    """Where the programs of a row meet."""
    _, plan, _ = _planned(function, [torch.zeros(2, WIDE), torch.zeros(WIDE)])
    (kernel,) = _shared(plan)
    assert kernel.spread is not None
    text = generate(plan, OPTIONS).launches[plan.steps.index(kernel)][0].function.text
    found = re.findall(r"bz_meet\((p\d+) \+ r_row \* (\d+) \+ (\d+), 3\)", text)
    arrivals = (f"p{len(kernel.memory) - 1}", str(kernel.spread.arrivals.shape[1]))
    assert all(place[:2] == arrivals for place in found)
    return [place[2] for place in found]


def test_each_meeting_has_its_arrivals() -> None:
    assert _meetings(_scaled_twice) == ["0", "1"]


@pytest.mark.parametrize("name", ["softmax", "layer norm", "standard score", "RMS norm"])
def test_pairs_of_folds_meet_once(name: str) -> None:
    assert _meetings(FUNCTIONS[name]) == ["0"]


def test_squares_around_another_mean() -> None:
    def around_another(x: Tensor, w: Tensor) -> Tensor:
        return x - (x - (x * w).mean(-1, keepdim=True)).square().mean(-1, keepdim=True)

    assert _meetings(around_another) == ["0", "1"]
    torch.manual_seed(6)
    _compare(around_another, [torch.randn(2, WIDE), torch.randn(WIDE)])


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_squares_around_a_mean_that_is_far_away(shift: float) -> None:
    torch.manual_seed(6)
    x = torch.randn(2, WIDE) + shift + torch.arange(WIDE) * 1e-3
    x[1, :PART] += 50.0  # a part's mean is far from the row's
    _compare(_norm, [x, torch.randn(WIDE)])
