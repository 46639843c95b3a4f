"""Sums over rows in the kernel of the rows, as the backward of a normalisation has them: rows in
another order of memory, sums of what the kernel writes, and what is left behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from braze.codegen.triton import generate
from braze.ir.kernels.scalars import apply, loads
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule, Store, offset
from braze.schedule import CUDA
from braze.schedule.memory.allocate import written
from tests.unit.codegen.programs import axes, buffer, define, load, program, total
from tests.unit.codegen.triton_running import (
    MARKS,
    OPTIONS,
    check,
    generated,
    planned,
    run_sources,
)

pytestmark = MARKS

Tensor = torch.Tensor

SMALL = replace(CUDA, least_work=1000, least_part=256, merges_columns=7)
APART = replace(SMALL, merges_columns=0)
POINTS = 20


def _normed(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """What the backward of a layer norm gives to x, and x normed."""
    hat = (x - x.mean(-1, keepdim=True)) * (x.var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    g = dy * w
    along = (g * hat).mean(-1, keepdim=True)
    return g - g.mean(-1, keepdim=True) - hat * along, hat


def _with_sums(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dx, hat = _normed(dy, x, w)
    over = (*range(x.dim() - 1),)
    return dx, (dy * hat).sum(over), dy.sum(over)


def _with_a_bias(dy: Tensor, x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient as a product leaves it, rows in one axis."""
    return r + _normed(dy.view(x.shape), x, w)[0], dy.sum(0)


def _of_a_sum(a: Tensor, b: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _with_sums(a + b, x, w)


def _of_a_kept_sum(a: Tensor, b: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (a + b, *_with_sums(a + b, x, w))


def _and_its_bias(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    dx, *sums = _with_sums(dy, x, w)
    return (dx, *sums, dx.sum((0, 1)))


def _of_neighbours(dy: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    """Sums of what the kernel writes, each point beside another one of its row."""
    dx, hat = _normed(dy, x, w)
    return dx, hat, (dx * dx.roll(1, -1)).sum((0, 1))


def _run(function: Callable[..., Any], given: list[Tensor]) -> Schedule:
    """The schedule; results are compared with float64's, and with those of sums apart."""
    mine, other = ([x.clone() for x in given] for _ in range(2))
    made, plan, used = planned(function, mine, SMALL)
    ours = run_sources(made, plan, generate(plan, OPTIONS), used)
    made, without, used = planned(function, other, APART)
    theirs = run_sources(made, without, generate(without, OPTIONS), used)
    exact = function(*[x.double() for x in given])
    for own, apart, right in zip(ours, theirs, exact, strict=True):
        unit = right.norm() * torch.finfo(own.dtype).eps
        assert (own.double() - right).norm() <= 2 * (apart.double() - right).norm() + 2 * unit
    return plan


def _kernels(plan: Schedule) -> list[Kernel]:
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    return [step for step in plan.steps if isinstance(step, Kernel)]


def _merged(plan: Schedule) -> Kernel:
    (found,) = [kernel for kernel in _kernels(plan) if kernel.columns]
    return found


@pytest.mark.parametrize(("rows", "columns"), [(80, 20), (91, 33)])
def test_sums_over_rows_join_the_kernel_of_the_rows(rows: int, columns: int) -> None:
    """dx = dy - x * (sum of dy * x along the row), and the sums of dy and of dy * x over rows."""
    shape = (rows, columns)
    x, dy, dx = (buffer(name, shape) for name in ("x", "dy", "dx"))
    dot, bias, weight = buffer("dot", (rows,)), buffer("bias", shape[1:]), buffer("w", shape[1:])
    (i, _), (j, _) = over = axes(shape)
    (k, _), (c, _) = other = axes(shape, "k")
    product = apply("mul", load(dy, i, j), load(x, i, j))
    statements = [
        define(dot, over[:1], total("sum", over[1:], product)),
        define(dx, over, apply("sub", load(dy, i, j), apply("mul", load(x, i, j), load(dot, i)))),
        define(bias, other[1:], total("sum", other[:1], load(dy, k, c))),
        define(
            weight,
            other[1:],
            total("sum", other[:1], apply("mul", load(dy, k, c), load(x, k, c))),
        ),
    ]
    backward = program([x, dy], statements, [dx, bias, weight])
    target = replace(CUDA, least_work=1000, least_part=256, merges_columns=7)
    plan, _ = generated(backward, target)
    merged = [step for step in plan.steps if isinstance(step, Kernel) and step.columns]
    assert len(merged) == 1 and len(merged[0].columns) == 2
    inputs = [torch.randn(shape), torch.randn(shape)]
    check(backward, inputs, target, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", [(9, 13), (16, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_may_lie_in_another_order(shape: tuple[int, int], dtype: torch.dtype) -> None:
    """The gradient of rows that another kernel has with the batch in front, as attention's."""
    outer, inner = shape
    dy = torch.randn(inner, outer, POINTS, dtype=dtype).transpose(0, 1)
    x, w = torch.randn(outer, inner, POINTS, dtype=dtype), torch.randn(POINTS, dtype=dtype)
    plan = _run(_with_sums, [dy, x, w])
    assert len(_merged(plan).rows) == 2 and len(_merged(plan).columns) == 2


def test_rows_of_as_many_in_either_order_are_told_apart() -> None:
    """Axes of one length: what is read says which is which."""
    dy = torch.randn(11, 11, POINTS).transpose(0, 1)
    plan = _run(_with_sums, [dy, torch.randn(11, 11, POINTS), torch.randn(POINTS)])
    (kernel,) = [step for step in _kernels(plan) if step.columns]
    assert len(kernel.rows) == 2


def test_sums_alone_follow_the_order_of_what_they_read() -> None:
    dy = torch.randn(13 * 9, POINTS)
    rows = [torch.randn(9, 13, POINTS).transpose(0, 1) for _ in range(2)]
    plan = _run(_with_a_bias, [dy, *rows, torch.randn(POINTS)])
    kernel = _merged(plan)
    (column,) = kernel.columns
    (read,) = loads(column.body)
    everything = [s for phase in kernel.phases for s in phase.body]
    bodies = [s.value if isinstance(s, Store) else s.body for s in everything]
    places = {offset(x.buffer, x.coordinates) for b in bodies for x in loads(b)}
    assert offset(read.buffer, read.coordinates) in places


@pytest.mark.parametrize("normed", [slice(0, 88), slice(3, 91), slice(0, 91)])
@pytest.mark.parametrize("summed", [slice(0, 91), slice(0, 89), slice(2, 91), slice(0, 84)])
def test_sums_are_over_their_own_rows(normed: slice, summed: slice) -> None:
    """The kernel of 88 rows took the sum of 91: parts of so many held its rows."""

    def function(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        rows = x[normed]
        return rows - (rows * w).sum(-1, keepdim=True), x[summed].sum(0)

    _run(function, [torch.randn(91, POINTS), torch.randn(POINTS)])


def test_parts_with_a_rest_join_their_rows() -> None:
    """89 rows in parts of seven: what is left out of the last one is no row."""
    plan = _run(_with_sums, [*(torch.randn(89, POINTS) for _ in range(2)), torch.randn(POINTS)])
    assert len(_merged(plan).columns) == 2


@pytest.mark.parametrize("shape", [(91, POINTS), (7, 13, POINTS)])
def test_a_sum_of_what_the_kernel_writes_is_taken_of_its_registers(shape: tuple[int, ...]) -> None:
    """Nothing but the sum reads the rows' sum of both gradients then: it is not written."""
    rows = [torch.randn(shape) for _ in range(3)]
    plan = _run(_of_a_sum, [*rows, torch.randn(POINTS)])
    kernel = _merged(plan)
    large = [b for b in written(kernel) if tuple(b.shape) == shape]
    assert len(kernel.columns) == 2 and len(large) == 1


def test_what_the_program_gives_is_written() -> None:
    rows = [torch.randn(91, POINTS) for _ in range(3)]
    plan = _run(_of_a_kept_sum, [*rows, torch.randn(POINTS)])
    large = [b for b in written(_merged(plan)) if tuple(b.shape) == (91, POINTS)]
    assert len(large) == 2


def test_sums_of_other_points_than_were_written_stay_apart() -> None:
    """They are in other threads' registers."""
    rows = [torch.randn(9, 13, POINTS) for _ in range(2)]
    plan = _run(_of_neighbours, [*rows, torch.randn(POINTS)])
    assert not any(kernel.columns for kernel in _kernels(plan))


def test_parts_of_all_sums_are_added_up_by_one_kernel() -> None:
    """Those of the sums that were split alone, too: they have the same parts now."""
    rows = [torch.randn(13, 9, POINTS).transpose(0, 1), torch.randn(9, 13, POINTS)]
    plan = _run(_and_its_bias, [*rows, torch.randn(POINTS)])
    kernel = _merged(plan)
    targets = {column.target for column in kernel.columns}
    readers = [k for k in _kernels(plan) if k is not kernel and targets & {*k.memory}]
    assert len(targets) == 3 and len(readers) == 1


def _behind_a_dropout(dy: Tensor, x: Tensor, w: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    dx, *sums = _with_sums(dy, x, w)
    g = torch.ops.aten.native_dropout_backward(dx, mask, 1.25)
    return (g, *sums, g.sum(0))


def test_a_thread_has_no_more_points_of_a_mask_than_of_what_it_writes() -> None:
    """Everything would be computed in two layouts: 16 points of a byte each, 8 of two."""
    rows = [torch.randn(2200, 1000, dtype=torch.bfloat16) for _ in range(2)]
    given = [*rows, torch.randn(1000, dtype=torch.bfloat16), torch.rand(2200, 1000) > 0.2]
    found = []
    for function, inputs in ((_with_sums, given[:3]), (_behind_a_dropout, given)):
        _, plan, _ = planned(function, inputs, CUDA)
        kernels = [x.function for step in generate(plan, OPTIONS).launches for x in step]
        (kernel,) = [x for x in kernels if "c0 =" in x.text]
        found.append(kernel.constants[0] // (32 * kernel.warps))
    assert found == [32, 8]
