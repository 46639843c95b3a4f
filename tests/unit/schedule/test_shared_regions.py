"""What is joined again with one piece more lies in one buffer."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from braze.ir.kernels.loops import Buffer, Definition, LoopProgram, Statement
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.scalars import apply, loads
from braze.ir.kernels.schedule import Kernel, Schedule
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.runtime.cuda_graphs.policy import held_bytes
from braze.schedule import CPU, CUDA, schedule
from braze.schedule.analysis.uses import find_uses
from braze.schedule.simplify.share_concat_buffers import share_regions
from braze.schedule.target import Target
from braze.shapes.expr import as_expr
from braze.tracing import Tracer
from tests.unit.codegen.programs import axes, buffer, define, load, program, view
from tests.unit.codegen.running import OPTIONS
from tests.unit.schedule.dense_block import DenseBlock

_ROWS, _WIDTH = 8, 4


def _joined(name: str, pieces: list[Buffer]) -> tuple[Buffer, list[Statement]]:
    target = buffer(name, (_ROWS, _WIDTH * len(pieces)))
    made: list[Statement] = []
    for number, piece in enumerate(pieces):
        (i, _), (j, _) = loops = axes((_ROWS, _WIDTH), f"{name}{number}_")
        made.append(define(target, loops, load(piece, i, j), (i, as_expr(j) + number * _WIDTH)))
    return target, made


def _dense(outputs: tuple[str, ...] = ()) -> LoopProgram:
    """y = 2 * cat(a, b); z = 3 * cat(a, b, c): each with a buffer of its own."""
    a, b, c = pieces = [buffer(name, (_ROWS, _WIDTH)) for name in "abc"]
    small, first = _joined("t", [a, b])
    large, second = _joined("u", pieces)
    y, z = buffer("y", small.shape), buffer("z", large.shape)  # type: ignore[arg-type]
    (i, _), (j, _) = loops = axes((_ROWS, 2 * _WIDTH), "y")
    (k, _), (n, _) = wide = axes((_ROWS, 3 * _WIDTH), "z")
    statements = [
        *first,
        define(y, loops, apply("mul", load(small, i, j), 2.0)),
        *second,
        define(z, wide, apply("mul", load(large, k, n), 3.0)),
    ]
    named = {"t": small, "u": large}
    return program([a, b, c], statements, [y, z, *[named[name] for name in outputs]])


def _shared(made: LoopProgram) -> LoopProgram:
    statements = share_regions(made.statements, find_uses(made, made.statements))
    return dataclasses.replace(made, statements=tuple(statements))


def _targets(made: LoopProgram) -> list[str]:
    return [s.target.name for s in made.statements if isinstance(s, Definition)]


def test_the_larger_one_is_read_instead() -> None:
    made = _shared(_dense())
    assert _targets(made) == ["u", "u", "y", "u", "z"]
    (y,) = [s for s in made.statements if isinstance(s, Definition) and s.target.name == "y"]
    assert [x.buffer.name for x in loads(y.body)] == ["u"]
    inputs = [torch.randn(_ROWS, _WIDTH) for _ in range(3)]
    for found, wanted in zip(run_loops(made, inputs), run_loops(_dense(), inputs), strict=True):
        assert torch.equal(found, wanted)


def test_what_is_seen_outside_stays() -> None:
    assert _targets(_shared(_dense(("t",)))) == _targets(_dense())
    assert _targets(_shared(_dense(("u",)))) == ["u", "u", "y", "u", "z"]


@pytest.mark.parametrize("how", ["order", "dtype", "place"])
def test_what_lies_otherwise_stays(how: str) -> None:
    base = _dense()
    large = base.statements[-1]
    assert isinstance(large, Definition)
    u = next(x.buffer for x in loads(large.body))
    changes = {
        "order": {"stride": (1, _ROWS)},
        "dtype": {"dtype": torch.float64},
        "place": {},
    }[how]
    other = dataclasses.replace(u, **changes) if changes else u

    def moved(statement: Statement) -> Statement:
        if not isinstance(statement, Definition) or statement.target is not u:
            return statement
        store = statement.store
        if how == "place":  # b and c change places
            at = {0: 0, _WIDTH: 2 * _WIDTH, 2 * _WIDTH: _WIDTH}
            start = next(n for n in at if store[1] - n == as_expr(statement.axes[1][0]))
            store = (store[0], store[1] - start + at[start])
        return dataclasses.replace(statement, target=other, store=store)

    statements = tuple([moved(s) for s in base.statements[:-1]])
    made = dataclasses.replace(base, statements=statements, outputs=(view(statements[2].target),))  # type: ignore[union-attr]
    assert _targets(_shared(made)) == _targets(made)


def _plan(module: nn.Module, x: torch.Tensor, target: Target) -> Schedule:
    options = Options()
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        for tensor in (*module.parameters(), *module.buffers()):
            tracer.add_input(tensor)
        finished = tracer.finish([module(tracer.add_input(x)).mean((2, 3))])
    program_ = lower(rewrite(finished.graph, options), options, lambda *_: True)
    return schedule(program_, OPTIONS, target)


@pytest.mark.parametrize("target", [CPU, CUDA], ids=["cpu", "cuda"])
def test_a_dense_block_needs_no_more_than_eager(target: Target) -> None:
    """At its last layer eager has all pieces, them joined, and that normalised."""
    layers, width, side = 8, 32, 32
    block = DenseBlock(layers, width).eval()
    plan = _plan(block, torch.empty(4, width, side, side), target)
    piece = 4 * 4 * width * side * side
    assert held_bytes(plan) <= piece * (layers + 2 * layers)
    writes: dict[Buffer, int] = {}
    for step in plan.steps:
        for buffer_ in step.memory if isinstance(step, Kernel) else ():
            writes[buffer_] = writes.get(buffer_, 0) + 1
    joined = [b for b in writes if b.shape == (4, width * (layers + 1), side, side)]
    assert len(joined) == 1
