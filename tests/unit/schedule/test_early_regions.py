"""Copies of library results into one buffer come one by one, so that only one result is alive."""

from __future__ import annotations

import torch

from braze.ir.kernels.loops import Definition, ExternCall, LoopProgram
from braze.ir.kernels.schedule import ExternStep, Kernel
from braze.schedule import CPU, CUDA, schedule
from braze.schedule.memory.eager_slices import write_regions_early
from braze.shapes.expr import as_expr
from tests.unit.codegen.programs import axes, buffer, load, program, view
from tests.unit.codegen.running import OPTIONS

_ROWS, _WIDTH, _BLOCKS = 64, 512, 6


def _in_blocks() -> LoopProgram:
    """y = x @ w, w in blocks, all products first."""
    x, w = buffer("x", (_ROWS, 16)), buffer("w", (16, _WIDTH))
    y = buffer("y", (_ROWS, _WIDTH * _BLOCKS))
    calls, copies = [], []
    for number in range(_BLOCKS):
        block = buffer(f"p{number}", (_ROWS, _WIDTH))
        calls.append(ExternCall(torch.ops.aten.mm.default, (view(x), view(w)), (), (block,)))
        (i, _), (j, _) = over = axes((_ROWS, _WIDTH))
        store = (as_expr(i), as_expr(j) + number * _WIDTH)
        copies.append(Definition(y, tuple(over), store, load(block, i, j)))
    return program([x, w], [*calls, *copies], [y])


def test_each_copy_follows_what_it_copies() -> None:
    made = write_regions_early(_in_blocks().statements)
    assert [type(s) for s in made] == [ExternCall, Definition] * _BLOCKS
    steps = schedule(_in_blocks(), OPTIONS, CUDA).steps
    assert [type(step) for step in steps] == [ExternStep, Kernel] * _BLOCKS
    alive = dict(schedule(_in_blocks(), OPTIONS, CUDA).last_use)
    blocks = {b.name: last for b, last in alive.items() if b.name.startswith("p")}
    assert blocks == {f"p{n}": 2 * n + 1 for n in range(_BLOCKS)}


def test_a_cpu_keeps_the_order() -> None:
    steps = schedule(_in_blocks(), OPTIONS, CPU).steps
    assert all(isinstance(step, ExternStep) for step in steps[:_BLOCKS])


def test_what_is_computed_stays() -> None:
    statements = list(_in_blocks().statements)
    x, y = buffer("x", (_ROWS, _WIDTH)), statements[-1].target  # type: ignore[union-attr]
    (i, _), (j, _) = over = axes((_ROWS, _WIDTH))
    other = Definition(y, tuple(over), (as_expr(i), as_expr(j)), load(x, i, j))
    assert write_regions_early([*statements, other])[-1] is other
    single = statements[:1] + statements[_BLOCKS : _BLOCKS + 1]
    assert write_regions_early(single) == single
