"""What a library call made does not wait for the end of a step, where it is copied or summed."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import braze
from braze.ir.kernels.loops import Buffer, ExternCall, LoopProgram, Statement
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.schedule import schedule
from braze.schedule.memory.allocate import memory_of
from braze.schedule.memory.copy_after_call import copy_early
from tests.recorded import recorded
from tests.unit.codegen.programs import axes, buffer, define, load, program, total, view
from tests.unit.codegen.running import OPTIONS

SIDE = 128  # 64 KiB of float32


def product(a: Buffer, b: Buffer, made: Buffer) -> ExternCall:
    return ExternCall(torch.ops.aten.mm.default, (view(a), view(b)), (), (made,))


def square(name: str, side: int = SIDE) -> Buffer:
    return buffer(name, (side, side))


def turned(source: Buffer, target: Buffer) -> Statement:
    """target = the source's transpose."""
    (i, _), (j, _) = over = axes(target.shape)  # type: ignore[arg-type]
    return define(target, over, load(source, j, i))


def test_a_copy_of_a_result_follows_the_call() -> None:
    x, p, q, g = map(square, "xpqg")
    calls = [product(x, x, p), product(x, x, q)]
    copy = turned(p, g)
    loops = program([x], [*calls, copy], [q, g])
    assert copy_early(loops, loops.statements) == [calls[0], copy, calls[1]]
    plan = schedule(loops, OPTIONS)
    assert [isinstance(step, ExternStep) for step in plan.steps] == [True, False, True]


def test_other_copies_stay() -> None:
    x, p, q, g, h = map(square, "xpqgh")
    calls = [product(x, x, p), product(x, x, q)]

    def stays(statements: Sequence[Statement], results: Sequence[Buffer]) -> bool:
        loops = program([x], statements, results)
        return copy_early(loops, loops.statements) == [*statements]

    assert stays([*calls, turned(p, g)], [q])  # no result
    assert stays([*calls, turned(p, g)], [q, g, p])  # p stays in any case
    assert stays([*calls, turned(p, g), turned(p, h)], [q, g, h])  # another one reads it
    (i, _), (j, _) = over = axes((SIDE, SIDE))
    doubled = define(g, over, apply("add", load(p, i, j), load(p, j, i)))
    assert stays([*calls, doubled], [q, g])  # no copy
    wide = buffer("wide", (SIDE, SIDE, 2))
    (i, _), (j, _), _ = over = axes((SIDE, SIDE, 2))
    assert stays([*calls, define(wide, over, load(p, i, j))], [q, wide])  # takes more memory
    small, result, copied = (square(name, 64) for name in ("small", "result", "copied"))
    few = [product(small, small, result), *calls, turned(result, copied)]
    assert stays(few, [q, copied])


def optimized() -> LoopProgram:
    """The sum over a product's rows is a gradient, of which m keeps a mean."""
    x, p, q = map(square, "xpq")
    g, m, made = (buffer(name, (SIDE,)) for name in ("g", "m", "made"))
    ((i, _),) = over = axes((SIDE,))
    ((r, _),) = rows = axes((SIDE,), "r")
    summed = define(g, over, total("sum", rows, load(p, r, i)))
    kept = define(made, over, apply("add", load(m, i), load(g, i)))
    calls = [product(x, x, p), product(x, p, q)]
    plain = program([x, m], [calls[0], summed, calls[1], kept], [q, g])
    return LoopProgram(plain.inputs, (), plain.statements, plain.outputs, ((m, view(made)),))


def last_touch(plan: Schedule, name: str) -> int:
    return max(n for n, s in enumerate(plan.steps) if name in {b.name for b in memory_of(s)})


def test_what_is_written_back_keeps_no_kernel_behind_the_calls() -> None:
    plan = schedule(optimized(), OPTIONS)
    assert [isinstance(step, ExternStep) for step in plan.steps] == [True, False, True, False]
    assert [b.name for b in plan.in_place] == ["m"] and not plan.mutations
    assert last_touch(plan, "p") < plan.settled == 3


def test_gradients_of_other_layouts_are_right() -> None:
    """A convolution of a channels-last image gives its weight such a gradient."""
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(1, 64, 8, 8, generator=generator).to(memory_format=torch.channels_last)

    def trained(compiled: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(64, 64, 3)
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = braze.compile(step) if compiled else step
        losses = [run(image) for _ in range(3)]
        gradients = [parameter.grad for parameter in model.parameters()]
        assert all(gradient is not None for gradient in gradients)
        return [*losses, *gradients, *model.parameters()]  # type: ignore[list-item]

    with recorded():
        found = trained(compiled=True)
    for got, expected in zip(found, trained(compiled=False), strict=True):
        assert got.stride() == expected.stride()
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
