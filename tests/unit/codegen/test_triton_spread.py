"""Rows shared by several programs: by Triton's interpreter, beside float64; and when they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import alternatives, generate, supports
from braze.ir.loops import LoopProgram, Scalar
from braze.ir.print_schedule import print_schedule
from braze.ir.scalars import apply
from braze.ir.schedule import Kernel, Schedule
from braze.lower import lower
from braze.rewrite import rewrite
from braze.schedule import CUDA, Target, schedule
from braze.shapes.expr import Symbol, as_expr
from braze.standins import Tracer
from tests.unit.codegen import programs
from tests.unit.codegen.triton_running import MARKS, OPTIONS, check, interpreting, run_sources

pytestmark = MARKS

Tensor = torch.Tensor

# A few rows are shared, too, whatever fits the cache; and not split into partial reductions.
SHARING = replace(CUDA, spread_bytes=1, enough_tasks=1)
WIDE = 3 * 16384


@pytest.fixture(autouse=True, scope="module")
def _interpreting() -> Iterator[None]:
    with interpreting():
        yield


def _planned(
    function: Callable[..., Any], given: list[Tensor], target: Target = SHARING
) -> tuple[LoopProgram, Schedule, list[Tensor]]:
    """The loop program, its schedule, and the inputs that it has."""
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        results = function(*[tracer.add_input(x) for x in given])
        finished = tracer.finish(list(results) if isinstance(results, tuple) else [results])
    made = lower(rewrite(finished.graph, OPTIONS), OPTIONS, supports)
    return made, schedule(made, OPTIONS, target), [given[n] for n in finished.inputs]


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


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "softmax": lambda x, w: torch.softmax(x, -1),
    "log_softmax": lambda x, w: torch.log_softmax(x, -1),
    "layer norm": _norm,
    "RMS norm": lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6),
    "extremes": _extremes,
    "totals": _totals,
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
        assert gaps[0] <= 2 * gaps[1] + scale / 4, (gaps, scale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    _compare(FUNCTIONS[name], [torch.randn(3, WIDE).to(dtype), torch.randn(WIDE).to(dtype)])


@pytest.mark.parametrize("columns", [16388, 20000, 49160, 81924])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_parts_that_are_not_full(name: str, columns: int) -> None:
    torch.manual_seed(1)
    _compare(FUNCTIONS[name], [torch.randn(2, columns), torch.randn(columns)])


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize("columns", [WIDE, 20000])
def test_rows_of_infinities_and_nan(name: str, columns: int) -> None:
    torch.manual_seed(2)
    x = torch.randn(8, columns)
    x[1] = -math.inf
    x[2, :16384] = -math.inf  # a part has nothing
    x[3, 16384:] = -math.inf
    x[4, 17000] = math.nan
    x[5, 3] = math.inf
    x[6] *= 1e30
    x[7] = -math.inf
    x[7, -1] = 0.5
    _compare(FUNCTIONS[name], [x, torch.randn(columns)])


def test_two_things_are_read_of_each_row() -> None:
    """So a program holds half as many points."""
    torch.manual_seed(3)
    dy, y = torch.randn(2, 20000), torch.softmax(torch.randn(2, 20000), -1)

    def backward(dy: Tensor, y: Tensor) -> Tensor:
        return torch.ops.aten._softmax_backward_data(dy, y, -1, y.dtype)

    _compare(backward, [dy, y])
    (kernel,) = _shared(_planned(backward, [dy, y])[1])
    assert kernel.spread is not None and kernel.spread.length == 8192


def test_more_than_one_axis_of_rows() -> None:
    torch.manual_seed(4)
    _compare(FUNCTIONS["softmax"], [torch.randn(2, 3, 20000), torch.randn(20000)])


@pytest.mark.parametrize("rows", [1, 3])
def test_an_unknown_number_of_rows(rows: int) -> None:
    torch.manual_seed(5)
    m, columns = Symbol("s0", 1, None), 20000
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
        ((512, 100000), torch.float32, True),
        ((512, 100001), torch.float32, False),  # rows are not aligned
        ((512, 50304), torch.float32, False),  # what all processors walk is in the cache
        ((512, 131072), torch.bfloat16, False),
        ((512, 300000), torch.float32, False),  # registers of too many programs
        ((4096, 4096), torch.float32, False),
    ],
)
def test_choice(shape: tuple[int, int], dtype: torch.dtype, shared: bool) -> None:
    plan = schedule(programs.softmax(*shape, dtype), OPTIONS, CUDA)
    assert bool(_shared(plan)) == shared
    assert ("a row over" in print_schedule(plan)) == shared


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


def test_each_meeting_has_its_arrivals() -> None:
    _, plan, _ = _planned(_norm, [torch.zeros(2, WIDE), torch.zeros(WIDE)])
    (kernel,) = _shared(plan)
    assert kernel.spread is not None
    text = generate(plan, OPTIONS).launches[1][0].function.text
    places = [f"bz_meet(p{len(kernel.memory) - 1} + r_row * 2 + {n}, 3)" for n in range(2)]
    assert [text.count(place) for place in places] == [1, 1]
    assert kernel.spread.arrivals.shape == (2, 2)
