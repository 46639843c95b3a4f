"""Which results take the memory of what is read for the last time, and that values stay right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.kernels.loops import ExternCall
from braze.ir.kernels.scalars import apply, loads
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.schedule import CPU, CUDA, schedule
from braze.schedule.memory.allocate import written
from braze.schedule.target import Target
from tests.unit.codegen.programs import axes, buffer, define, load, program, view

OPTIONS = config.snapshot()
LARGE = "f32[256, 256][256, 1]cpu"
SMALL = "f32[8, 8][8, 1]cpu"


def planned(*lines: str, target: Target = CPU) -> Schedule:
    graph = parse_graph("graph {\n" + "".join(f"  {line}\n" for line in lines) + "}\n")
    apart = replace(OPTIONS, skip_passes=("fuse_attention",))  # a softmax between two products
    return schedule(lower(rewrite(graph, apart), OPTIONS), OPTIONS, target)


def memories(plan: Schedule) -> tuple[set[str], set[str]]:
    """The buffers that the product and the kernel behind it give contents."""
    product = next(s for s in plan.steps if isinstance(s, ExternStep))
    kernel = next(s for s in plan.steps if isinstance(s, Kernel))
    return {b.name for b in written(product)}, {b.name for b in written(kernel)}


def chain(kind: str, *between: str, result: str = "%4", target: Target = CPU) -> Schedule:
    """A product, what is computed of it, and a product of that."""
    return planned(
        f"input %0: {kind}",
        f"input %1: {kind}",
        f"%2: {kind} = aten.mm.default(%0, %1)",
        *between,
        f"%9: {kind} = aten.mm.default({result}, %1)",
        "output %9",
        target=target,
    )


def test_softmax_is_where_its_logits_were() -> None:
    softmax = f"%4: {LARGE} = aten._softmax.default(%2, -1, False)"
    plan = chain(LARGE, softmax, target=replace(CPU, joins_attention=False))
    first, second = memories(plan)
    assert first == second and len(plan.slots) == 1


def test_small_values_have_their_own_memory() -> None:
    first, second = memories(chain(SMALL, f"%4: {SMALL} = aten._softmax.default(%2, -1, False)"))
    assert first.isdisjoint(second)


def test_what_is_read_elsewhere_is_not_written_over() -> None:
    plan = chain(
        LARGE,
        f"%3: {LARGE} = aten.flip.default(%2, [1])",
        f"%4: {LARGE} = aten.add.Tensor(%3, %2)",
    )
    first, second = memories(plan)
    assert first.isdisjoint(second)


@pytest.mark.parametrize(
    "rest",
    [
        pytest.param(
            (f"%5: {LARGE} = aten.mm.default(%4, %2)", "output %5"), id="what is read later"
        ),
        pytest.param(("output %2", "output %4"), id="what the program sees"),
    ],
)
def test_what_is_needed_later_is_not_written_over(rest: tuple[str, ...]) -> None:
    plan = planned(
        f"input %0: {LARGE}",
        f"input %1: {LARGE}",
        f"%2: {LARGE} = aten.mm.default(%0, %1)",
        f"%3: {LARGE} = aten.exp.default(%2)",
        f"%4: {LARGE} = aten.mm.default(%3, %1)",
        *rest,
    )
    first, second = memories(plan)
    assert first.isdisjoint(second)


@pytest.mark.parametrize(("target", "is_written"), [(CPU, False), (CUDA, True)])
def test_what_an_operator_allocates(target: Target, is_written: bool) -> None:
    """It stays as it is where operators can write into planned memory: those that do not may have
    reasons."""
    image = "f32[1, 1, 256, 256][65536, 65536, 256, 1]cpu"
    rest = "[1, 1], [0, 0], [1, 1], False, [0, 0], 1"
    plan = planned(
        f"input %0: {image}",
        "input %1: f32[1, 1, 1, 1][1, 1, 1, 1]cpu",
        f"%2: {image} = aten.convolution.default(%0, %1, None, {rest})",
        f"%3: {image} = aten.exp.default(%2)",
        f"%4: {image} = aten.convolution.default(%3, %1, None, {rest})",
        "output %4",
        target=target,
    )
    first, second = memories(plan)
    assert (first == second) is is_written


def test_a_foreign_operator_may_return_what_it_was_given() -> None:
    with torch.library._scoped_library("braze_test_write_over", "DEF") as library:
        library.define("same(Tensor x) -> Tensor")
        (x, y, p, q) = (buffer(name, (256, 256)) for name in "xypq")
        (i, _), (j, _) = over = axes((256, 256))
        op = torch.ops.braze_test_write_over.same.default
        doubled = define(q, over, apply("mul", load(p, i, j), 2.0))
        mm = ExternCall(torch.ops.aten.mm.default, (view(q), view(x)), (), (y,))
        loops = program([x], [ExternCall(op, (view(x),), (), (p,)), doubled, mm], [y])
        first, second = memories(schedule(loops, OPTIONS, CUDA))
    assert first.isdisjoint(second)


def test_sums_over_rows_come_behind_the_rows() -> None:
    """What they read is not written over, and they read it where it is."""
    rows = "f32[4096, 256][256, 1]cpu"
    plan = planned(
        f"input %0: {rows}",
        "input %1: f32[256, 256][256, 1]cpu",
        f"%2: {rows} = aten.mm.default(%0, %1)",
        f"%3: {rows} = aten.exp.default(%2)",
        f"%4: {rows} = aten.mm.default(%3, %1)",
        f"%5: {rows} = aten.mul.Tensor(%3, %4)",
        "%6: f32[4096, 1][1, 1]cpu = aten.sum.dim_IntList(%5, [1], True)",
        f"%7: {rows} = aten.sub.Tensor(%3, %6)",
        "%8: f32[256][1]cpu = aten.sum.dim_IntList(%3, [0])",
        f"%9: {rows} = aten.mm.default(%7, %1)",
        "output %8",
        "output %9",
        target=CUDA,
    )
    first, second = memories(plan)
    assert first == second, "the exponential lies where its operand was"
    (kernel,) = [s for s in plan.steps if isinstance(s, Kernel) and s.columns]
    read = {load.buffer for column in kernel.columns for load in loads(column.body)}
    assert {b.name for b in read} == first and read <= {*kernel.memory}
    assert read.isdisjoint(written(kernel))


def test_steps_of_a_convolution_are_those_of_eager() -> None:
    def train(compile_: Callable[[Any], Any]) -> list[float]:
        torch.manual_seed(0)
        layers = [torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
        model = torch.nn.Sequential(*layers, torch.nn.Conv2d(8, 8, 3, padding=1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x = torch.randn(2, 8, 48, 48)

        def step() -> Tensor:
            optimizer.zero_grad()
            loss = (model(x) + x).relu().square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = compile_(step)
        return [float(run()) for _ in range(4)]

    eager, found = train(lambda step: step), train(braze.compile)
    assert found == pytest.approx(eager, rel=1e-4)


@pytest.mark.parametrize("size", [96, 130, 384])
def test_values_and_gradients_are_those_of_eager(size: int) -> None:
    def step(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = torch.softmax((x @ w).relu() * 3.0, -1) @ v
        loss = torch.nn.functional.cross_entropy(logits, torch.arange(size) % size)
        first, second = torch.autograd.grad(loss, (w, v))
        return loss, first, second

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, size, generator=generator)
    w, v = (torch.randn(size, size, generator=generator).requires_grad_() for _ in range(2))
    compiled = braze.compile(step, fullgraph=True)
    for _ in range(3):
        exact = step(*(t.detach().double().requires_grad_() for t in (x, w, v)))
        for found, eager, right in zip(compiled(x, w, v), step(x, w, v), exact, strict=True):
            error, own = (found.double() - right).abs().max(), (eager.double() - right).abs().max()
            assert error <= 2 * own + 1e-6 * right.abs().max()
