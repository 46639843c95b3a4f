"""Buffers that are read while a part of them is still to be written, interpreted."""

from __future__ import annotations

import itertools

import pytest
import torch

from braze.ir.kernels.loops import Buffer, LoopProgram, Statement
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import Kernel
from braze.shapes.expr import as_expr
from tests.unit.codegen.programs import axes, buffer, define, load, program
from tests.unit.codegen.triton_running import MARKS, check, generated

pytestmark = MARKS


_ROWS, _WIDTH, _PIECES = 24, 40, 8


def _layers(column_major: bool) -> LoopProgram:
    """Each piece is computed from all before it: p4 = max(0, p0|p1|p2|p3) summed in four, ..."""
    pieces = [buffer(f"p{n}", (_ROWS, _WIDTH)) for n in range(6)]
    inputs = list(pieces)
    statements: list[Statement] = []
    outputs: list[Buffer] = []
    for layer in range(6, 6 + _PIECES):
        shape = (_ROWS, _WIDTH * len(pieces))
        joined = buffer(f"t{layer}", shape, stride=(1, _ROWS) if column_major else None)
        for number, piece in enumerate(pieces):
            (i, _), (j, _) = over = axes((_ROWS, _WIDTH), f"r{layer}_{number}_")
            store = (i, as_expr(j) + number * _WIDTH)
            statements.append(define(joined, over, load(piece, i, j), store))
        made = buffer(f"p{layer}", (_ROWS, _WIDTH))
        (i, _), (j, _) = over = axes((_ROWS, _WIDTH), f"m{layer}_")
        ends = (len(pieces) - 1, 0, layer % len(pieces))
        read = [load(joined, i, as_expr(j) + n * _WIDTH) for n in ends]
        total = read[0]
        for value in read[1:]:
            total = apply("add", apply("maximum", total, 0.0), value)
        statements.append(define(made, over, apply("mul", total, 0.5)))
        pieces.append(made)
        outputs.append(made)
    return program(inputs, statements, outputs[-2:])


@pytest.mark.parametrize("column_major", [False, True])
def test_pieces_that_are_joined_again_and_again(column_major: bool) -> None:
    made = _layers(column_major)
    generator = torch.Generator().manual_seed(0)
    check(made, [torch.randn(_ROWS, _WIDTH, generator=generator) for _ in made.inputs])
    plan, _ = generated(made)
    written = [{b.name for b in step.memory} for step in plan.steps if isinstance(step, Kernel)]
    joined = {name for name in itertools.chain.from_iterable(written) if name.startswith("t")}
    assert joined <= {f"t{5 + _PIECES}"}
