"""Where values lie while results grow: in an arena that a call holds, or in memory of their own."""

from __future__ import annotations

from dataclasses import replace

import torch

import braze
from braze.ir.kernels.loops import ExternCall, LoopProgram
from braze.ir.kernels.scalars import apply
from braze.options import config
from braze.schedule import CPU, schedule
from tests.recorded import recorded
from tests.unit.codegen.programs import axes, buffer, define, load, program, view

OPTIONS = config.snapshot()
SHAPE = (1024, 1024)
BYTES = 4 * 1024 * 1024


def forward_and_back(shape: tuple[int, int], results: bool) -> LoopProgram:
    """a = exp(x), b = a x, c = b x; then d = c x, e = b x, f = a x, each the last to read one of
    the first: a gradient takes the place of what the forward left. Without results: only f is."""
    x, a, b, c, d, e, f = (buffer(name, shape) for name in "x a b c d e f".split())
    (i, _), (j, _) = over = axes(shape)
    mm = torch.ops.aten.mm.default
    products = [(a, b), (b, c), (c, d), (b, e), (a, f)]
    calls = [ExternCall(mm, (view(m), view(x)), (), (out,)) for m, out in products]
    made = define(a, over, apply("exp", load(x, i, j)))
    return program([x], [made, *calls], [d, e, f] if results else [f])


def test_what_goes_as_results_grow_has_memory_of_its_own() -> None:
    loops = forward_and_back(SHAPE, results=True)
    plan = schedule(loops, OPTIONS)
    assert plan.slots == () and plan.arena_size == 0
    assert [made.name for made in plan.fresh] == ["a"]
    drops = {dropped.name: step for dropped, step in plan.last_use}
    assert (drops["c"], drops["b"], drops["a"]) == (3, 4, 5)
    held = schedule(loops, OPTIONS, replace(CPU, shares_memory=False))
    assert held.arena_size == 3 * BYTES


def test_an_arena_stays_where_nothing_could_lie_in_it_later() -> None:
    plan = schedule(forward_and_back(SHAPE, results=False), OPTIONS)
    assert {placed.name for placed, _ in plan.slots} >= {"a", "b", "c"}
    small = schedule(forward_and_back((64, 64), results=True), OPTIONS)
    assert {placed.name for placed, _ in small.slots} == {"a", "b", "c"}


def test_values_with_memory_of_their_own_are_right() -> None:
    """Kernels and library calls write to it, and views of it are read."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.exp()
        b = a @ x
        c = (b @ x).relu()
        d = c.t() @ x
        e = b[:512] @ x + b[512:]
        return d, e, a @ x

    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)) / 32
    with recorded():
        compiled = braze.compile(f)
        explanation = braze.explain(f)(x)
    assert not explanation.fallbacks
    for _ in range(3):
        for got, expected in zip(compiled(x), f(x), strict=True):
            torch.testing.assert_close(got, expected)
