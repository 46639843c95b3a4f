"""Operands of a sum that come one after the other carry the sum so far."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

import braze
from braze.ir.kernels.loops import Buffer, Definition, ExternCall, LoopProgram, Scalar, Statement
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.scalars import apply, cast, loads
from braze.ir.kernels.schedule import Kernel
from braze.schedule import CPU, schedule
from braze.schedule.analysis.uses import find_uses
from braze.schedule.reductions.accumulate_chain import carry_sums
from braze.shapes.expr import as_expr
from tests.unit.codegen.programs import F32, axes, buffer, define, load, program, view
from tests.unit.codegen.running import OPTIONS, check
from tests.unit.schedule.dense_block import DenseBlock

_ROWS, _WIDTH = 64, 32

Add = Callable[[Scalar, Scalar], Scalar]


def _plain(first: Scalar, second: Scalar) -> Scalar:
    return apply("add", first, second)


def _in_float32(first: Scalar, second: Scalar) -> Scalar:
    return cast(_plain(cast(first, F32), cast(second, F32)), first.dtype)


def _slice(
    name: str, operands: Sequence[Buffer], start: int, width: int, add: Add = _plain
) -> Definition:
    """name[i, j] = the sum of operands[i, j + start]."""
    target = buffer(name, (_ROWS, width), operands[0].dtype)
    (i, _), (j, _) = over = axes((_ROWS, width), f"{name}_")
    body: Scalar = load(operands[0], i, as_expr(j) + start)
    for operand in operands[1:]:
        body = add(body, load(operand, i, as_expr(j) + start))
    return define(target, over, body)


def _operand(number: int, before: Buffer, width: int) -> tuple[Buffer, list[Statement], Buffer]:
    """A weight, tanh of the product of what was before and it, and that."""
    weight = buffer(f"w{number}", (_WIDTH, width), before.dtype)
    product = buffer(f"z{number}", (_ROWS, width), before.dtype)
    operand = buffer(f"g{number}", (_ROWS, width), before.dtype)
    call = ExternCall(torch.ops.aten.mm.default, (view(before), view(weight)), (), (product,))
    (i, _), (j, _) = over = axes((_ROWS, width), f"g{number}_")
    value = cast(apply("tanh", cast(load(product, i, j), F32)), before.dtype)
    return weight, [call, define(operand, over, value)], operand


def _dense(layers: int, dtype: torch.dtype = F32, add: Add = _plain) -> LoopProgram:
    """A dense block's backward: the gradient of a piece is the sum over all layers behind it, and
    of it comes the gradient of the layer's input, all pieces before."""
    before = x = buffer("x", (_ROWS, _WIDTH), dtype)
    weights: list[Buffer] = []
    operands: list[Buffer] = []
    statements: list[Statement] = []
    for width in range(layers * _WIDTH, -1, -_WIDTH):
        weight, made, operand = _operand(len(weights), before, width + _WIDTH)
        weights.append(weight)
        operands.append(operand)
        piece = _slice(f"y{len(operands)}", operands, width, _WIDTH, add)
        statements += [*made, piece]
        before = piece.target
    return program([x, *weights], statements, [before])


def _carried(made: LoopProgram) -> LoopProgram:
    statements = carry_sums(made.statements, find_uses(made, made.statements))
    return dataclasses.replace(made, statements=tuple(statements))


def _read(made: LoopProgram, name: str) -> list[str]:
    (found,) = [s for s in made.statements if isinstance(s, Definition) and s.target.name == name]
    return sorted({x.buffer.name for x in loads(found.body)})


def _inputs(made: LoopProgram) -> list[torch.Tensor]:
    shapes = [[int(str(n)) for n in b.shape] for b in made.inputs]
    return [torch.randn(shape).to(b.dtype) for shape, b in zip(shapes, made.inputs)]


def _same(made: LoopProgram, other: LoopProgram) -> None:
    inputs = _inputs(made)
    for found, wanted in zip(run_loops(made, inputs), run_loops(other, inputs), strict=True):
        assert torch.equal(found, wanted)


_FORMS = pytest.mark.parametrize(
    ("dtype", "add"), [(F32, _plain), (torch.bfloat16, _in_float32)], ids=["float", "half"]
)


@_FORMS
def test_each_operand_takes_the_sum_so_far(dtype: torch.dtype, add: Add) -> None:
    given = _dense(4, dtype, add)
    made = _carried(given)
    assert _read(made, "g0") == ["z0"]
    for n in range(1, 5):
        assert _read(made, f"g{n}") == [f"g{n - 1}", f"z{n}"]
        assert _read(made, f"y{n + 1}") == [f"g{n}"]
    _same(made, given)
    check(given, _inputs(given))


def test_one_operand_is_alive() -> None:
    """As many kernels and as many elements as without, in memory for three operands."""
    layers = 12
    made = _dense(layers)
    plan = schedule(made, OPTIONS, CPU)
    without = schedule(made, OPTIONS, dataclasses.replace(CPU, carries_sums=False))
    operand = 4 * _ROWS * _WIDTH * layers
    assert plan.arena_size <= 3 * operand < without.arena_size
    assert len(plan.steps) == len(without.steps)
    assert _memory_touched(plan.steps) <= _memory_touched(without.steps)


def _memory_touched(steps: Sequence[object]) -> int:
    return sum(len(step.memory) for step in steps if isinstance(step, Kernel))


def _replaced(
    made: LoopProgram, name: str, other: Callable[[Definition], Definition]
) -> LoopProgram:
    statements = [
        other(s) if isinstance(s, Definition) and s.target.name == name else s
        for s in made.statements
    ]
    return dataclasses.replace(made, statements=tuple(statements))


def _definition(made: LoopProgram, name: str) -> Definition:
    (found,) = [s for s in made.statements if isinstance(s, Definition) and s.target.name == name]
    return found


def test_what_is_read_otherwise_stays() -> None:
    """y2 reads g1 by itself once more."""
    made = _dense(2)
    g1 = _definition(made, "g1").target

    def reading(definition: Definition) -> Definition:
        (load_, *_) = [x for x in loads(definition.body) if x.buffer is g1]
        return dataclasses.replace(definition, body=apply("mul", definition.body, load_))

    changed = _replaced(made, "y2", reading)
    assert _read(_carried(changed), "y2") == ["g0", "g1"]
    assert _read(_carried(changed), "g1") == ["z1"]
    _same(_carried(changed), changed)


def test_what_is_seen_outside_stays() -> None:
    made = _dense(2)
    g1 = _definition(made, "g1").target
    changed = dataclasses.replace(made, outputs=(*made.outputs, view(g1)))
    assert _read(_carried(changed), "g1") == ["z1"]
    assert _read(_carried(changed), "g2") == ["z2"]
    _same(_carried(changed), changed)


def test_what_is_read_in_part_stays() -> None:
    """Nobody reads half of g1: to add to all of it would be more work."""
    x = buffer("x", (_ROWS, _WIDTH))
    w0, first, g0 = _operand(0, x, 2 * _WIDTH)
    w1, second, g1 = _operand(1, x, 2 * _WIDTH)
    half, whole = [_slice("y", [g0, g1], 0, width) for width in (_WIDTH, 2 * _WIDTH)]
    made = program([x, w0, w1], [*first, *second, half], [half.target])
    assert _read(_carried(made), "y") == ["g0", "g1"]
    made = program([x, w0, w1], [*first, *second, whole], [whole.target])
    assert _read(_carried(made), "y") == ["g1"]


def test_a_kernel_does_not_wait_for_the_sum_so_far() -> None:
    """What g1 is computed of is there before g0."""
    x = buffer("x", (_ROWS, _WIDTH))
    w0, (call, g0_), g0 = _operand(0, x, _WIDTH)
    w1, (other, g1_), g1 = _operand(1, x, _WIDTH)
    y = _slice("y", [g0, g1], 0, _WIDTH)
    late = program([x, w0, w1], [call, other, g0_, g1_, y], [y.target])
    assert _read(_carried(late), "y") == ["g0", "g1"]
    early = program([x, w0, w1], [call, g0_, other, g1_, y], [y.target])
    assert _read(_carried(early), "y") == ["g1"]


def test_the_sum_so_far_is_there_before() -> None:
    """g1 reads a region of u, of which another one is written behind g0, which is behind g1."""
    x = buffer("x", (_ROWS, _WIDTH))
    u = buffer("u", (_ROWS, 2 * _WIDTH))
    g1 = buffer("g1", (_ROWS, _WIDTH))

    def region(number: int) -> Definition:
        (i, _), (j, _) = over = axes((_ROWS, _WIDTH), f"u{number}_")
        return define(u, over, load(x, i, j), (i, as_expr(j) + number * _WIDTH))

    (i, _), (j, _) = over = axes((_ROWS, _WIDTH), "g1_")
    w0, (call, g0_), g0 = _operand(0, x, _WIDTH)
    y = _slice("y", [g0, g1], 0, _WIDTH)
    g1_ = define(g1, over, apply("tanh", load(u, i, j)))
    made = program([x, w0], [region(0), g1_, call, g0_, region(1), y], [y.target, u])
    assert _read(_carried(made), "g1") == ["u"]
    assert _read(_carried(made), "g0") == ["g1", "z0"]
    _same(_carried(made), made)


def _random(seed: int) -> LoopProgram:
    """Operands of any widths, sums of some of them in any order, read at any place."""
    random_ = random.Random(seed)
    before = x = buffer("x", (_ROWS, _WIDTH))
    statements: list[Statement] = []
    inputs, operands, results = [x], [], []
    widest = 5 * _WIDTH
    for n in range(random_.randint(2, 6)):
        width = random_.choice([widest, max(_WIDTH, widest - _WIDTH), widest + 1, 2 * _WIDTH])
        weight, made, operand = _operand(n, before, width)
        statements += made
        inputs.append(weight)
        operands.append(operand)
        widest = min(widest, width)
        for start, stop in _places(widest, random_):
            chosen = list(operands) if random_.random() < 0.8 else _some(operands, random_)
            piece = _slice(f"y{len(results)}", chosen, start, stop - start)
            statements.append(piece)
            results.append(piece.target)
            if stop - start == _WIDTH:
                before = piece.target
    seen = [b for b in results if random_.random() < 0.7]
    seen += random_.choice([[], [], [random_.choice(operands)]])
    return program(inputs, statements, seen or operands[-1:])


_SEEDS = range(40)


def test_random_programs_carry_sums() -> None:
    given = [_random(seed) for seed in _SEEDS]
    changed = [made for made in given if _carried(made).statements != made.statements]
    assert len(changed) >= 5


@pytest.mark.parametrize("seed", _SEEDS)
def test_random_sums_of_slices(seed: int) -> None:
    """The same bits as without, by the evaluator; by kernels, which contract and have a tanh of
    their own, nearly."""
    made = _random(seed)
    _same(_carried(made), made)
    check(made, _inputs(made), rtol=1e-5, atol=1e-4)


def _places(width: int, random_: random.Random) -> list[tuple[int, int]]:
    """Slices of so many columns: none, one, some, or parts that they are cut in."""
    start = random_.randrange(width)
    some = [(0, width), (start, width), (width - _WIDTH, width)]
    parts = [(at, min(at + _WIDTH, width)) for at in range(0, width, _WIDTH)]
    return random_.choice([[], [random_.choice(some)], some, parts, parts])


def _some(operands: Sequence[Buffer], random_: random.Random) -> list[Buffer]:
    return random_.sample(list(operands), random_.randint(1, len(operands)))


def test_gradients_of_a_dense_block() -> None:
    """As accurate as eager's, by float64."""

    def gradients(block: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.autograd.grad(block(x).sin().mean(), [x, *block.parameters()]))

    block, x = DenseBlock(5, 8), torch.randn(2, 8, 8, 8)
    exact = gradients(copy.deepcopy(block).double(), x.double().requires_grad_())
    eager = gradients(copy.deepcopy(block), x.clone().requires_grad_())
    compiled = braze.compile(gradients, fullgraph=True)
    found = compiled(copy.deepcopy(block), x.clone().requires_grad_())
    for mine, theirs, right in zip(found, eager, exact, strict=True):
        error = (mine.double() - right).norm()
        assert error <= 2 * (theirs.double() - right).norm() + 1e-7 * right.norm()
