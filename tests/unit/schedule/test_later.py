"""Values that are computed once more behind the peak of memory."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import braze
from braze.ir.kernels.loops import ExternCall, LoopProgram, Scalar
from braze.ir.kernels.print_schedule import print_schedule
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import ExternStep
from braze.options import config
from braze.schedule import CPU, schedule
from tests.unit.codegen.programs import axes, buffer, define, load, program, view

OPTIONS = config.snapshot()
HELD = replace(CPU, shares_memory=False)  # one arena: its size is what is planned
WITHOUT = replace(HELD, computes_later=False)
SHAPE = (1024, 1024)
BYTES = 4 * 1024 * 1024


def chain(operator: str, outside: bool = False) -> LoopProgram:
    """y of x; a = y y, b = a x, c = b x; z = y c: y waits for the last product."""
    x, y, a, b, c, z = (buffer(name, SHAPE) for name in "x y a b c z".split())
    (i, _), (j, _) = over = axes(SHAPE)
    body: Scalar = apply(operator, load(x, i, j))
    mm = torch.ops.aten.mm.default
    products = [(y, y, a), (a, x, b), (b, x, c), (y, c, z)]
    calls = [ExternCall(mm, (view(m), view(n)), (), (out,)) for m, n, out in products]
    return program([x], [define(y, over, body), *calls], [z, *([y] if outside else [])])


def order(loops: LoopProgram) -> str:
    steps = schedule(loops, OPTIONS).steps
    return "".join("m" if isinstance(step, ExternStep) else "k" for step in steps)


def test_what_is_cheap_is_computed_again() -> None:
    loops = chain("neg")
    assert order(loops) == "kmmmkm"
    with_it, without = schedule(loops, OPTIONS, HELD), schedule(loops, OPTIONS, WITHOUT)
    assert (with_it.arena_size, without.arena_size) == (2 * BYTES, 3 * BYTES)
    assert "_y" in print_schedule(with_it)


def test_what_leaves_at_the_end_hides_no_peak() -> None:
    """Results (an optimizer's new state) take more memory than what waits, and are there for good:
    what else is alive counts."""
    loops = chain("neg")
    x = loops.inputs[0]
    (i, _), (j, _) = over = axes(SHAPE)
    states = [buffer(f"state{number}", SHAPE) for number in range(4)]
    made = [define(state, over, apply("neg", load(x, i, j))) for state in states]
    outputs = (*loops.outputs, *map(view, states))
    longer = replace(loops, statements=(*loops.statements, *made), outputs=outputs)
    assert schedule(longer, OPTIONS, HELD).arena_size == 2 * BYTES


def test_what_is_dear_or_seen_waits() -> None:
    assert order(chain("exp")) == "kmmmm"
    assert order(chain("neg", outside=True)) == "kmmmm"


def test_what_is_read_stays_no_longer() -> None:
    """y is made of t, which nobody reads again."""
    loops = chain("neg")
    x, t = loops.inputs[0], buffer("t", SHAPE)
    first, *rest = loops.statements
    (i, _), (j, _) = over = axes(SHAPE)
    made = ExternCall(torch.ops.aten.mm.default, (view(x), view(x)), (), (t,))
    moved = define(first.target, over, apply("neg", load(t, i, j)))  # type: ignore[union-attr]
    assert order(replace(loops, statements=(made, moved, *rest))) == "mkmmmm"


def test_a_step_of_a_network_with_batch_norms() -> None:
    def training() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for _ in range(4):
            layers += [nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
        model = nn.Sequential(*layers)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    x = torch.randn(2, 16, 96, 96, generator=torch.Generator().manual_seed(1))
    eager, ours = training(), training()
    compiled = braze.compile(step, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(*ours, x), step(*eager, x))
    found, wanted = (list(model.state_dict().values()) for model, _ in (ours, eager))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
