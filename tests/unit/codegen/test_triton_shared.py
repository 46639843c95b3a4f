"""Fewer functions and fewer kernels: by Triton's interpreter, beside the loop evaluator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from braze.codegen.triton import generate, shared
from braze.ir.kernels.kernel import DeviceFunction
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.scalars import apply
from braze.ir.kernels.schedule import Kernel
from tests.unit.codegen.programs import axes, buffer, define, load, program, total
from tests.unit.codegen.test_triton_products import planned
from tests.unit.codegen.triton_running import (
    MARKS,
    ON_DEVICE,
    OPTIONS,
    check,
    generated,
    run_sources,
)

pytestmark = MARKS


def _layers(widths: Sequence[int]) -> LoopProgram:
    """For each width, rows less a row, and their sum over rows."""
    inputs, outputs, statements = [], [], []
    for number, width in enumerate(widths):
        x, row = buffer(f"x{number}", (300, width)), buffer(f"row{number}", (width,))
        y, sums = buffer(f"y{number}", (300, width)), buffer(f"sum{number}", (width,))
        (i, _), (r, _) = over = axes((300, width), f"l{number}_")
        statements.append(define(y, over, apply("sub", load(x, i, r), load(row, r))))
        statements.append(define(sums, over[1:], total("sum", over[:1], load(x, i, r))))
        inputs += [x, row]
        outputs += [y, sums]
    return program(inputs, statements, outputs)


def _functions(made: LoopProgram) -> list[DeviceFunction]:
    _, sources = generated(made)
    return list({launch.function: None for step in sources.launches for launch in step})


def _inputs(widths: Sequence[int]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape) for width in widths for shape in ((300, width), (width,))]


def test_layers_of_several_widths_share_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = (1040, 1072, 1104, 1136)
    made = _layers(widths)
    found = _functions(made)
    assert any("i32" in function.signature for function in found)
    check(made, _inputs(widths), rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(shared, "_LEAST_SHARING", 100)
    assert len(_functions(made)) > len(found)


def test_widths_that_are_multiples_of_16_have_their_own() -> None:
    made = _layers((1041, 1073, 1105, 1040, 1072, 1104))
    sized = [f for f in _functions(made) if "i32" in f.signature]
    aligned = [len(f.aligned) for f in sized]
    assert len(set(aligned)) == 2
    check(made, _inputs((1041, 1073, 1105, 1040, 1072, 1104)), rtol=1e-4, atol=1e-4)


def test_large_kernels_know_their_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_MOST_BYTES", 1000)
    assert not any("i32" in f.signature for f in _functions(_layers((1040, 1072, 1104))))


def test_counters_are_one_kernel() -> None:
    """As the batches that each norm of a model has seen; one is read by what follows."""

    def count(*given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = []
        for x, number in zip(given[::2], given[1::2], strict=True):
            made.append(x.sum(1) * number)
            number.add_(len(made))
        return tuple(made)

    inputs = [[torch.randn(300, 1000 + 8 * n), torch.tensor(n)] for n in range(12)]
    given = [x for pair in inputs for x in pair]
    program_, plan = planned(count, given)
    kernels = [s for s in plan.steps if isinstance(s, Kernel)]
    assert sum(not k.rows and not k.phases[0].loops for k in kernels) == 1
    mine, theirs = [[x.clone() for x in given] for _ in range(2)]
    found, right = run_sources(program_, plan, generate(plan, OPTIONS), mine), count(*theirs)
    kept = ([], []) if ON_DEVICE else (mine, theirs)  # a device has copies of its own
    for a, b in zip([*found, *kept[0]], [*right, *kept[1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
