"""Sums and squares about a mean in one read: the same numbers, and what is left alone."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from braze.codegen.cpp import generate
from braze.ir.captured.compile_request import GraphCallable
from braze.ir.kernels.loops import LoopProgram, Reduce
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.scalars import apply, cast, index
from braze.ir.kernels.schedule import Accumulate, Kernel, Schedule
from braze.lower import lower
from braze.runtime.launch.cpp_compiler import NoCompiler
from braze.runtime.link.link_cpu import link
from braze.schedule import CPU, CUDA, Target, schedule
from braze.schedule.analysis.strides import load_accesses
from braze.schedule.simplify.flatten_reduction_axes import flattened
from braze.schedule.simplify.normalize import new_names
from braze.shapes.expr import as_expr
from braze.tracing import Tracer
from tests.unit.codegen.programs import axes, buffer, define, load, program, total
from tests.unit.codegen.running import OPTIONS

# A CPU that takes both moments at once.
TARGET = dataclasses.replace(CPU, moment_points=2048, enough_tasks=64)


def moments(shape: tuple[int, ...], divisor: float = 0.0) -> LoopProgram:
    """The sum over all but dimension 1 and the squares about the mean (or another number)."""
    x, s, m, v = (buffer(n, shape if n == "x" else shape[1:2]) for n in "xsmv")
    channel = axes(shape[1:2], "c")
    rest = axes((shape[0], *shape[2:]), "r")
    (c, _), ((first, _), *others) = channel[0], rest
    value = load(x, first, c, *(symbol for symbol, _ in others))
    gap = apply("sub", value, load(m, c))
    count = divisor or float(math.prod(shape) // shape[1])
    statements = [
        define(s, channel, total("sum", rest, value)),
        define(m, channel, apply("truediv", load(s, c), count)),
        define(v, channel, total("sum", rest, apply("mul", gap, gap))),
    ]
    return program([x], statements, [s, m, v])


def _reads(plan: Schedule) -> int:
    """How many kernels read the input."""
    return sum(isinstance(s, Kernel) and plan.inputs[0] in s.memory for s in plan.steps)


def _folds(plan: Schedule) -> list[int]:
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    return [sum(isinstance(s, Accumulate) for p in k.phases for s in p.body) for k in kernels]


def _compiled(made: LoopProgram, target: Target) -> GraphCallable:
    plan = schedule(made, OPTIONS, target)
    linked = link(plan, generate(plan, OPTIONS), OPTIONS)
    assert not isinstance(linked, NoCompiler)
    return linked


SHAPES = [(32, 8, 32, 32), (31, 8, 32, 40), (6, 4, 128, 128), (4, 3, 30, 1024), (300000, 1)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_both_moments_in_one_read(shape: tuple[int, ...], mean: float) -> None:
    made = moments(shape)
    assert _reads(schedule(made, OPTIONS, TARGET)) == 1
    assert _reads(schedule(made, OPTIONS, CPU)) >= 2
    torch.manual_seed(0)
    x = torch.randn(shape) + mean
    dims = [n for n in range(len(shape)) if n != 1]
    exact = x.double()
    wanted = exact.sum(dims), (exact - exact.mean(dims, keepdim=True)).square().sum(dims)
    found, _, squares = _compiled(made, TARGET)([x])
    torch.testing.assert_close(found.double(), wanted[0], rtol=1e-5, atol=1e-2)
    torch.testing.assert_close(squares.double(), wanted[1], rtol=1e-5, atol=0)


def test_squares_about_any_number() -> None:
    made = moments((32, 8, 32, 32), divisor=7.0)
    assert _reads(schedule(made, OPTIONS, TARGET)) == 1
    x = torch.rand(32, 8, 32, 32)
    expected = run_loops(made, [x])
    for mine, right in zip(_compiled(made, TARGET)([x]), expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-5, atol=1e-3)


def test_values_that_are_not_finite() -> None:
    made, x = moments((32, 8, 32, 32)), torch.randn(32, 8, 32, 32)
    x[3, 1, 4, 4], x[5, 2, 0, 0] = torch.inf, torch.nan
    expected = run_loops(made, [x])
    for mine, right in zip(_compiled(made, TARGET)([x]), expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=1e-2, equal_nan=True)


LEFT = {
    "groups enough": (8, 512, 16, 16),
    "small": (4, 8, 16, 16),
    "a prime number of points": (300007, 1),
}


@pytest.mark.parametrize("shape", LEFT.values(), ids=LEFT)
def test_left_alone(shape: tuple[int, ...]) -> None:
    made = moments(shape)
    for target in (TARGET, CUDA):
        without = dataclasses.replace(target, moment_points=0)
        assert _folds(schedule(made, OPTIONS, target)) == _folds(schedule(made, OPTIONS, without))


def test_a_batch_norm_reads_its_image_twice() -> None:

    tracer = Tracer()
    x = tracer.add_input(torch.randn(32, 64, 56, 56))
    w, b, mean, var = (tracer.add_input(torch.ones(64)) for _ in range(4))
    with tracer:
        y = torch.nn.functional.batch_norm(x, mean, var, w, b, True)
    made = lower(tracer.finish([y]).graph, OPTIONS)
    plan = schedule(made, OPTIONS, CUDA)
    assert _reads(plan) == 2 and sum(isinstance(s, Kernel) for s in plan.steps) == 3


def test_neighbouring_axes_are_one_where_memory_is() -> None:
    """Channels last: images, rows and places are one walk; row-major: rows and places."""
    shape, c = (4, 6, 10, 12), 6
    for stride, sizes in (((720, 1, 72, 6), [480]), ((720, 120, 12, 1), [4, 120])):
        x, y = buffer("x", shape, stride=stride), buffer("y", (c,))
        (channel, _), rest = axes((c,), "c")[0], axes((4, 10, 12), "r")
        (n, _), (h, _), (w, _) = rest
        value = apply("mul", load(x, n, channel, h, w), load(x, n, channel, h, w))
        definition = define(y, axes((c,), "c"), total("sum", rest, value))
        flat = flattened(definition, new_names())
        assert isinstance(flat.body, Reduce) and [size for _, size in flat.body.axes] == sizes
        (last, _), step = flat.body.axes[-1], stride[-1]
        place = as_expr(last) * step + as_expr(channel) * stride[1]
        if len(sizes) > 1:
            place = place + as_expr(n) * stride[0]
        assert {found for _, found in load_accesses(flat.body)} == {place}


def test_axes_whose_places_are_read_stay() -> None:
    x, y = buffer("x", (4, 5)), buffer("y", ())
    (a, _), (b, _) = over = axes((4, 5), "r")
    weight = cast(index(as_expr(a)), torch.float32)
    definition = define(y, (), total("sum", over, apply("mul", load(x, a, b), weight)))
    assert flattened(definition, new_names()) is definition
