"""What is inlined, fused, cut, split, kept in registers, and where buffers lie."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from braze.ir.kernels.loops import Definition, ExternCall, LoopProgram
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import Accumulate, ExternStep, Kernel, Schedule
from braze.options import config
from braze.schedule import CPU, CUDA, schedule
from braze.schedule.memory.allocate import size_of
from braze.schedule.reductions.split_reduction import split
from braze.schedule.simplify.normalize import new_names
from braze.shapes.expr import floor_div, modulo
from tests.unit.codegen.programs import (
    F32,
    add_norm,
    axes,
    buffer,
    channel_norm,
    define,
    load,
    program,
    reduction,
    softmax,
    total,
    transposed_add,
    view,
)

OPTIONS = config.snapshot()


def planned(loops: LoopProgram) -> Schedule:
    return schedule(loops, OPTIONS)


def kernels(loops: LoopProgram) -> list[Kernel]:
    return [step for step in planned(loops).steps if isinstance(step, Kernel)]


def test_softmax_is_one_kernel_of_three_phases() -> None:
    (kernel,) = kernels(softmax(4096, 1000))
    assert len(kernel.phases) == 3 and not kernel.lanes
    assert [b.name for b in kernel.memory] == ["x", "y"]
    assert [b.shape for b in kernel.scratch] == [(1000,)]


def test_add_norm_is_one_kernel() -> None:
    (kernel,) = kernels(add_norm(4096, 768))
    assert {b.name for b in kernel.memory} == {"x", "res", "w", "h", "rstd", "y"}


def test_channel_statistics_and_use_are_one_kernel() -> None:
    (kernel,) = kernels(channel_norm((16, 64, 100)))
    assert [size for _, size in kernel.rows] == [64]
    assert [size for _, size in kernel.phases[0].loops] == [16, 100]


def test_contiguous_loops_merge() -> None:
    shape = (8, 512, 768)
    x, y = buffer("x", shape), buffer("y", shape)
    over = axes(shape)
    body = apply("exp", load(x, *(s for s, _ in over)))
    (kernel,) = kernels(program([x], [define(y, over, body)], [y]))
    assert kernel.rows == () and kernel.phases[0].loops[0][1] == 8 * 512 * 768
    assert kernel.chunks


def test_reshape_cuts_loops() -> None:
    x, y = buffer("x", (12, 512, 64)), buffer("y", (512, 768))
    (i, _), (j, _) = over = axes((512, 768))
    body = load(x, floor_div(j, 64), i, modulo(j, 64))
    (kernel,) = kernels(program([x], [define(y, over, body)], [y]))
    assert [n for _, n in (*kernel.rows, *kernel.phases[0].loops)] == [512, 12, 64]


def test_transposed_read_is_tiled() -> None:
    (kernel,) = kernels(transposed_add(512, 512))
    assert kernel.chunks == (32, 64)


def test_column_sum_runs_over_lanes() -> None:
    (kernel,) = kernels(reduction("sum", (30, 4000), (1,)))
    assert kernel.lanes and kernel.rows[-1][1] == 4000


@pytest.mark.parametrize("length", [1_000_000, 999_983])
def test_large_sum_is_split_by_size_alone(length: int) -> None:
    (definition,) = reduction("sum", (length,), ()).statements
    assert isinstance(definition, Definition)
    pieces = split(definition, new_names(), over_lanes=False, target=CPU)
    assert len(pieces) == (2 if length % 64 == 0 and length % pieces[0].axes[0][1] == 0 else 3)
    covered = sum(
        (piece.axes[0][1] if piece.axes else 1) * piece.body.axes[0][1]  # type: ignore[union-attr]
        for piece in pieces[:-1]
    )
    assert covered == length


def test_heavy_values_are_not_computed_twice() -> None:
    """exp is read by two consumers of other shapes: it is stored."""
    x, e = buffer("x", (64, 64)), buffer("e", (64, 64))
    y, z = buffer("y", (64, 64)), buffer("z", (64, 64))
    (i, _), (j, _) = over = axes((64, 64))
    statements = [
        define(e, over, apply("exp", load(x, i, j))),
        define(y, over, apply("add", load(e, j, i), load(x, i, j))),
        define(z, over, apply("sub", load(e, i, modulo(j + 1, 64)), load(x, i, j))),
    ]
    plan = planned(program([x], statements, [y, z]))
    assert [b.name for b, _ in plan.slots] == ["e"]
    assert any("another point" in refusal.reason for refusal in plan.refusals)


def test_cheap_values_are_computed_again() -> None:
    x, n, y, z = (buffer(name, (64, 64)) for name in ("x", "n", "y", "z"))
    (i, _), (j, _) = over = axes((64, 64))
    statements = [
        define(n, over, apply("neg", load(x, i, j))),
        define(y, over, apply("exp", load(n, j, i))),
        define(z, over, apply("sin", load(n, i, j))),
    ]
    assert not planned(program([x], statements, [y, z])).slots


def test_independent_small_definitions_share_a_kernel() -> None:
    names = [f"p{k}" for k in range(5)]
    ins = [buffer(name, (100,)) for name in names]
    outs = [buffer(f"q{name}", (100,)) for name in names]
    over = axes((100,))
    statements = [
        define(q, over, apply("mul", load(p, over[0][0]), 0.5)) for p, q in zip(ins, outs)
    ]
    (kernel,) = kernels(program(ins, statements, outs))
    assert len(kernel.phases[0].body) == 5


def test_reductions_of_one_input_are_taken_together() -> None:
    x, s, m = buffer("x", (4096, 500)), buffer("s", (4096,)), buffer("m", (4096,))
    ((i, _),) = over = axes((4096,))
    along = axes((500,), "r")
    r = along[0][0]
    statements = [
        define(s, over, total("sum", along, load(x, i, r))),
        define(m, over, total("max", along, load(x, i, r))),
    ]
    (kernel,) = kernels(program([x], statements, [s, m]))
    (phase,) = kernel.phases
    assert sum(isinstance(statement, Accumulate) for statement in phase.body) == 2


def test_order_around_extern_calls_and_reuse_of_memory() -> None:
    shape = (64, 64)
    x, y = buffer("x", shape), buffer("y", shape)
    (i, _), (j, _) = over = axes(shape)
    statements, source = [], x
    for k in range(6):
        a, p = buffer(f"a{k}", shape), buffer(f"p{k}", shape)
        statements.append(define(a, over, apply("exp", load(source, i, j))))
        op = torch.ops.aten.mm.default
        statements.append(ExternCall(op, (view(a), view(a)), (), (p,)))  # type: ignore[arg-type]
        source = p
    statements.append(define(y, over, apply("neg", load(source, i, j))))
    plan = planned(program([x], statements, [y]))
    assert [isinstance(step, ExternStep) for step in plan.steps] == [False, True] * 6 + [False]
    assert plan.arena_size == 2 * 64 * 64 * 4, "two buffers take turns"


def test_slots_of_buffers_alive_together_do_not_overlap() -> None:
    plan = planned(add_norm(8, 16))
    spans = sorted((slot.offset, slot.offset + slot.size) for _, slot in plan.slots)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))


def test_size_of_counts_strides() -> None:
    assert size_of(buffer("b", (3, 4), stride=(10, 2))) == (2 * 10 + 3 * 2 + 1) * 4
    assert size_of(buffer("b", (0, 4))) == 0


def test_large_values_of_a_device_have_memory_of_their_own() -> None:
    """They go back after their last reader; the rest is planned, results of ATen are not."""
    shape = (64, 64)
    x, small, a, p, y = (buffer(name, shape) for name in ("x", "small", "a", "p", "y"))
    (i, _), (j, _) = over = axes(shape)
    mm = torch.ops.aten.mm.default
    statements = [
        define(a, over, apply("exp", load(x, i, j))),
        ExternCall(mm, (view(a), view(a)), (), (p,)),
        define(small, over, apply("exp", load(p, i, j))),
        ExternCall(mm, (view(small), view(small)), (), (y,)),
    ]
    made = program([x], statements, [y])
    for most, planned_names in ((1 << 20, {"a", "small"}), (1000, set())):
        plan = schedule(made, OPTIONS, replace(CUDA, planned_bytes=most))
        assert {b.name for b, _ in plan.slots} == planned_names
        assert {b.name for b in plan.fresh} == {"a", "small"} - planned_names
        dropped = {b.name: step for b, step in plan.last_use}
        assert dropped["p"] == 2 and (planned_names or dropped["a"] == 1)


def test_limit_of_definitions_in_a_kernel() -> None:
    x = buffer("x", (1000, 100))
    (i, _), (j, _) = over = axes((1000, 100))
    outs = [buffer(f"y{k}", (1000, 100)) for k in range(4)]
    statements = [define(y, over, apply("exp", load(x, i, j))) for y in outs]
    plan = schedule(program([x], statements, outs), replace(OPTIONS, max_fusion_size=2))
    assert len(plan.steps) == 2
    assert "already" in plan.refusals[0].reason


def test_printed_form() -> None:
    text = print_schedule(planned(softmax(100, 77)))
    assert text.splitlines()[0].startswith("kernel k0: rows i0 < 100; memory x, y; scratch")
    assert "top max= x[i0, r0]" in text and text.endswith("return y\n")
    assert F32 is torch.float32
