"""A part that is read behind the peak of memory waits without the rest of its value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from braze.ir.kernels.loops import Buffer, Definition, ExternCall, LoopProgram, Statement
from braze.ir.kernels.scalars import apply, loads
from braze.schedule import CPU, schedule
from braze.schedule.memory.split_live_ranges import keep_parts
from braze.schedule.simplify.normalize import new_names
from tests.unit.codegen.programs import axes, buffer, define, load, program, view
from tests.unit.codegen.running import OPTIONS, check

SIDE = 1024
BYTES = 4 * SIDE * SIDE


def product(a: Buffer, b: Buffer, made: Buffer) -> ExternCall:
    return ExternCall(torch.ops.aten.mm.default, (view(a), view(b)), (), (made,))


def skip(part: int, first: int = 0, turned: bool = False, side: int = SIDE) -> LoopProgram:
    """g = x x; y of g; then products of y; z of `part` rows of g, from the `first` on."""
    x, g, y, p, q, r = (buffer(name, (side, side)) for name in "x g y p q r".split())
    if turned:
        g = replace(g, stride=(1, side))
    z = buffer("z", (part, side))
    (i, _), (j, _) = over = axes((side, side))
    (k, _), (n, _) = fewer = axes((part, side))
    statements: list[Statement] = [
        product(x, x, g),
        define(y, over, apply("neg", load(g, i, j))),
        product(y, y, p),
        product(p, y, q),
        product(p, q, r),
        define(z, fewer, apply("mul", load(g, k + first, n), load(r, k, n))),
    ]
    return program([x], statements, [z])


def kept(loops: LoopProgram) -> list[Definition]:
    """The copies of parts."""
    made = keep_parts(loops, loops.statements, new_names())
    before = {*map(id, loops.statements)}
    names = {s.target.name for s in loops.statements if isinstance(s, Definition)}
    new = [s for s in made if isinstance(s, Definition) and id(s) not in before]
    return [s for s in new if s.target.name not in names]


def test_a_part_waits_and_the_rest_goes() -> None:
    loops = skip(SIDE // 4, SIDE // 2)
    made = keep_parts(loops, loops.statements, new_names())
    g = loops.statements[0].outputs[0]  # type: ignore[union-attr]
    (copy,) = kept(loops)
    assert copy.target.shape == (SIDE // 4, SIDE)
    assert [isinstance(s, ExternCall) for s in made] == [
        True,
        False,
        False,
        True,
        True,
        True,
        False,
    ]
    last = made[-1]
    assert isinstance(last, Definition)
    read = {found.buffer for found in loads(last.body)}
    assert g not in read and made[2].target in read  # type: ignore[union-attr]
    held = replace(CPU, shares_memory=False)
    sizes = [
        schedule(loops, OPTIONS, replace(held, computes_later=flag)).arena_size
        for flag in (True, False)
    ]
    assert sizes[1] - sizes[0] == BYTES * 3 // 4


def test_the_part_lies_in_memory_as_the_whole_does() -> None:
    (copy,) = kept(skip(SIDE // 4, turned=True))
    assert copy.target.stride == (1, SIDE // 4)


@pytest.mark.parametrize("turned", [False, True])
def test_the_values_are_the_same(turned: bool) -> None:
    x = torch.randn(SIDE, SIDE, generator=torch.Generator().manual_seed(0)) / SIDE**0.5
    for first in (0, 5, SIDE * 3 // 4):
        check(skip(SIDE // 4, first, turned), [x], rtol=1e-4, atol=1e-5)


def test_what_frees_less_than_it_copies_stays() -> None:
    assert len(kept(skip(SIDE // 2))) == 1
    assert not kept(skip(SIDE // 2 + 1))


def test_small_programs_stay() -> None:
    assert not kept(skip(64, side=256))


def changed(how: str) -> LoopProgram:
    loops = skip(SIDE // 4)
    x, (g,) = loops.inputs[0], loops.statements[0].outputs  # type: ignore[union-attr]
    assert g is not None
    last: Sequence[Statement]
    if how == "result":
        return replace(loops, outputs=(*loops.outputs, view(g)))
    if how == "call":
        last = [product(g, x, buffer("h", (SIDE, SIDE)))]
    else:
        h = buffer("h", (SIDE,))
        ((i, _),) = over = axes((SIDE,))
        places = buffer("places", (SIDE,), torch.int64)
        loops = replace(loops, inputs=(x, places))
        last = [define(h, over, load(g, load(places, i), i))]
    made = last[0].target if isinstance(last[0], Definition) else last[0].outputs[0]
    assert made is not None
    statements = (*loops.statements, *last)
    return replace(loops, statements=statements, outputs=(*loops.outputs, view(made)))


@pytest.mark.parametrize("how", ["result", "call", "gather"])
def test_what_is_read_otherwise_stays_whole(how: str) -> None:
    assert not kept(changed(how))
