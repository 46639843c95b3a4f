"""Arenas whose layout follows from sizes: nothing overlaps, memory is kept and given back."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace

import torch

from braze.codegen.cpp import generate
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, LoopProgram, Statement
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import ALIGNMENT, ExternStep, Schedule
from braze.ir.types import Size
from braze.runtime.launch.dynamic_arena import SizedArena, plan_arena
from braze.runtime.launch.launch_program import write_program
from braze.runtime.link.link_cpu import frames_of
from braze.schedule import CUDA, schedule
from braze.shapes.expr import Expr, Symbol, as_expr, simplified
from tests.unit.codegen.programs import F32, buffer, define, load, program, view
from tests.unit.codegen.running import OPTIONS, compiled

ROWS, WIDTH = Symbol("s0", 0, None, hint=6), Symbol("s1", 0, None, hint=4)
MM = torch.ops.aten.mm.default


def _sized(name: str, *shape: Expr) -> Buffer:
    strides: list[Size] = []
    step = as_expr(1)
    for size in reversed(shape):
        strides.append(simplified(step))
        step = step * size
    return replace(buffer(name, (1,)), shape=shape, stride=tuple(reversed(strides)))


def _turned(whole: Buffer) -> BufferView:
    return BufferView(whole, whole.shape[::-1], whole.stride[::-1], 0, F32)


def _chain(depth: int = 3) -> LoopProgram:
    """x (n, w); each turn: a = exp(x) kept to the end, p = a' @ a (w, w), x = sin(a @ p): sizes of
    two kinds, some of them alive to the end."""
    n, w = as_expr(ROWS), as_expr(WIDTH)
    x, y = _sized("x", n, w), _sized("y", n, w)
    statements: list[Statement] = []
    kept: list[Buffer] = []
    source = x
    i, j = Symbol("i0", 0, None), Symbol("i1", 0, None)
    over = ((i, n), (j, w))
    for turn in range(depth):
        a, q = _sized(f"a{turn}", n, w), _sized(f"q{turn}", n, w)
        p, b = _sized(f"p{turn}", w, w), _sized(f"b{turn}", n, w)
        body = apply("exp", apply("sin", load(source, i, j)))
        statements += [
            define(a, over, body),  # type: ignore[arg-type]
            ExternCall(MM, (_turned(a), view(a)), (), (p,)),
            ExternCall(MM, (view(a), view(p)), (), (q,)),
            define(b, over, apply("tanh", load(q, i, j))),  # type: ignore[arg-type]
        ]
        kept.append(a)
        source = b
    total = load(source, i, j)
    for a in kept:
        total = apply("add", total, load(a, i, j))  # type: ignore[assignment]
    statements.append(define(y, over, total))  # type: ignore[arg-type]
    return program([x], statements, [y])


def _expected(x: torch.Tensor, depth: int = 3) -> torch.Tensor:
    kept = []
    for _ in range(depth):
        kept.append(x.sin().exp())
        x = torch.tanh(kept[-1] @ (kept[-1].mT @ kept[-1]))
    return x + sum(kept)


def _lives(plan: Schedule) -> dict[Buffer, tuple[int, int]]:
    """The first and the last step that touches each buffer."""
    found: dict[Buffer, tuple[int, int]] = {}
    for number, step in enumerate(plan.steps):
        if isinstance(step, ExternStep):
            views = [a for a in step.call.args if isinstance(a, BufferView)]
            touched: Sequence[Buffer] = [*(v.buffer for v in views), *step.call.outputs]  # type: ignore[list-item]
        else:
            touched = step.memory
        for one in touched:
            found[one] = (found.get(one, (number, 0))[0], number)
    return found


def test_buffers_alive_together_never_overlap() -> None:
    plan = schedule(_chain(), OPTIONS)
    assert len(plan.sized) == 9 and not plan.slots and not plan.arena_size
    assert [b.name for b in plan.fresh] == ["y"]
    lives = _lives(plan)
    arena = plan_arena(plan.sized, (), ())
    assert [symbol.name for symbol in arena.symbols] == ["s0", "s1"]
    shared = 0
    for n, w in itertools.product((0, 1, 2, 6, 50, 1000), (0, 1, 4, 33, 700)):
        offsets, size = arena.offsets((n, w))
        assert all(offset % ALIGNMENT == 0 for offset in offsets)
        spans = []
        for (one, _), offset in zip(plan.sized, offsets, strict=True):
            length = 4 * (n * w if one.name[0] in "aqb" else w * w)
            assert offset + length <= size
            spans.append((lives[one], offset, offset + length))
        for (first, start, stop), (second, begin, end) in itertools.combinations(spans, 2):
            together = first[0] <= second[1] and second[0] <= first[1]
            apart = stop <= begin or end <= start or start == stop or begin == end
            assert apart or not together
            shared += not apart
    assert shared, "memory is used again"


def test_results_at_many_sizes() -> None:
    function = compiled(_chain())
    generator = torch.Generator().manual_seed(0)
    for n, w in [(6, 4), (6, 4), (1, 4), (0, 3), (5, 0), (40, 30), (2, 60), (300, 8), (1, 1)]:
        x = torch.rand(n, w, generator=generator)
        expected = _expected(x)
        for _ in range(2):
            torch.testing.assert_close(function([x])[0], expected, rtol=1e-4, atol=1e-4)


def test_threads_with_different_sizes() -> None:
    function = compiled(_chain())
    wrong: list[float] = []

    def call(n: int) -> None:
        x = torch.rand(n, 8, generator=torch.Generator().manual_seed(n))
        right = _expected(x)
        for _ in range(30):
            error = (function([x])[0] - right).abs().max().item()
            if not error < 1e-3:
                wrong.append(error)

    threads = [threading.Thread(target=call, args=(n,)) for n in (3, 50, 200, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _arena(plan: Schedule) -> SizedArena:
    sources = generate(plan, OPTIONS)
    frame = frames_of(plan, sources, write_program(plan, sources).views).take()
    assert isinstance(frame[-1], SizedArena)
    return frame[-1]


def test_memory_is_kept_for_the_next_sizes_and_given_back() -> None:
    arena = _arena(schedule(_chain(), OPTIONS))
    arena.lay_out((100, 40))
    first = [tensor.untyped_storage().data_ptr() for tensor in arena.views]
    assert arena.numbers == (100, 40) and len(set(first)) == 1
    size = arena.views[0].untyped_storage().nbytes()
    arena.lay_out((60, 30))
    assert [t.untyped_storage().data_ptr() for t in arena.views] == first
    arena.lay_out((1000, 40))
    assert arena.views[0].untyped_storage().nbytes() > size
    arena.lay_out((3, 4))
    assert arena.views[0].untyped_storage().nbytes() < size


def test_text_of_a_plan() -> None:
    text = print_schedule(schedule(_chain(1), OPTIONS))
    assert "arena a0: 4*s0*s1\n" in text
    assert "arena q0: 4*s0*s1, behind a0\n" in text


def test_a_device_allocates_them() -> None:
    plan = schedule(_chain(), OPTIONS, CUDA)
    assert not plan.sized and {b.name for b in plan.fresh} >= {"a0", "a1", "a2"}
