"""Sums that are zero but for one point: without a loop, and the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import braze
from braze.codegen import triton
from braze.ir.kernels.loops import Apply, Definition, LoopProgram, Reduce, Statement
from braze.ir.kernels.run_loops import run_loops
from braze.ir.kernels.scalars import walk
from braze.ir.kernels.schedule import Accumulate, Kernel
from braze.ir.kernels.verify_loops import verify_loops
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.schedule import CPU, CUDA, Target, schedule
from braze.schedule.simplify.one_hot_sums import pick_one_hot
from braze.tracing import Tracer

OPTIONS = config.snapshot()
CLASSES = 9
aten = torch.ops.aten


def _made(function: Callable[..., Tensor], given: list[Tensor]) -> tuple[LoopProgram, list[Tensor]]:
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        finished = tracer.finish([function(*[tracer.add_input(x) for x in given])])
    program = lower(rewrite(finished.graph, OPTIONS), OPTIONS, triton.supports)
    return program, [given[number] for number in finished.inputs]


def _sums(statements: list[Statement]) -> int:
    bodies = [s.body for s in statements if isinstance(s, Definition)]
    return sum(isinstance(n, Reduce) and n.kind == "sum" for body in bodies for n in walk(body))


def _where(labels: Tensor, values: Tensor) -> Tensor:
    return torch.where(labels[:, None] == torch.arange(CLASSES), values[:, None], 0.0).sum(1)


def _swapped(labels: Tensor, values: Tensor) -> Tensor:
    found = (torch.arange(CLASSES) == labels[:, None]) & (values > 0)[:, None]
    return torch.where(found, (values * 2)[:, None], 0.0).sum(1, keepdim=True)


def _images(labels: Tensor, values: Tensor) -> Tensor:
    """Along the channels of images."""
    at = labels.reshape(-1, 1, 2)
    here = torch.arange(CLASSES)[None, :, None] == at
    return torch.where(here, values.reshape(-1, 1, 2), 0.0).sum(1)


def _gradient(labels: Tensor, values: Tensor) -> Tensor:
    """Of a cross-entropy."""
    logits = torch.outer(values, torch.arange(CLASSES) * 0.1)
    inside = torch.where(labels < CLASSES, labels, -100)
    inside = torch.where(inside < 0, -100, inside)
    total = (inside != -100).sum().to(values.dtype)
    chosen = F.log_softmax(logits, 1)
    one = torch.ones((), dtype=values.dtype)
    back = aten.nll_loss_backward(one, chosen, inside, None, 1, -100, total)
    made: Tensor = aten._log_softmax_backward_data(back, chosen, 1, values.dtype)
    return made


PICKED = (_where, _swapped, _images, _gradient)


def _given(dtype: torch.dtype) -> list[Tensor]:
    """Labels below the first class and behind the last one; values that are zero, and no number."""
    torch.manual_seed(0)
    labels, values = torch.randint(0, CLASSES, (32,)), torch.randn(32).to(dtype)
    labels[:6] = torch.tensor([-100, -1, CLASSES, 0, CLASSES - 1, 1 << 40])
    values[6:8] = torch.tensor([0.0, -0.0])
    return [labels, values]


@pytest.mark.parametrize("function", PICKED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_sum_less_and_the_same_bits(
    function: Callable[..., Tensor], dtype: torch.dtype
) -> None:
    given = _given(dtype)
    if function is not _gradient:
        given[1][8] = float("nan")
    program, inputs = _made(function, given)
    picked = replace(program, statements=tuple(pick_one_hot([*program.statements])))
    verify_loops(picked)
    assert _sums([*picked.statements]) == _sums([*program.statements]) - 1
    (found,), (expected,) = run_loops(picked, inputs), run_loops(program, inputs)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def _by_class(labels: Tensor, values: Tensor) -> Tensor:
    weights = torch.arange(CLASSES) * values[0]
    return torch.where(labels[:, None] == torch.arange(CLASSES), weights, 0.0).sum(1)


def _twice(labels: Tensor, values: Tensor) -> Tensor:
    places = torch.arange(CLASSES)
    found = (labels[:, None] == places) & (labels[:, None].flip(0) == places)
    return torch.where(found, values[:, None], 0.0).sum(1)


def _ones(labels: Tensor, values: Tensor) -> Tensor:
    return torch.where(labels[:, None] == torch.arange(CLASSES), values[:, None], 1.0).sum(1)


def _unequal(labels: Tensor, values: Tensor) -> Tensor:
    return torch.where(labels[:, None] != torch.arange(CLASSES), values[:, None], 0.0).sum(1)


def _shifted(labels: Tensor, values: Tensor) -> Tensor:
    return torch.where(labels[:, None] == torch.arange(CLASSES) * 2, values[:, None], 0.0).sum(1)


@pytest.mark.parametrize(
    "function", [_by_class, _twice, _ones, _unequal, _shifted], ids=lambda f: f.__name__
)
def test_other_sums_keep_their_loop(function: Callable[..., Tensor]) -> None:
    program, _ = _made(function, _given(torch.float32))
    assert _sums(pick_one_hot([*program.statements])) == _sums([*program.statements]) == 1


@pytest.mark.parametrize("target", [CPU, CUDA], ids=["cpu", "cuda"])
def test_a_cross_entropy_s_backward_goes_over_its_classes_once(target: Target) -> None:
    program, _ = _made(_gradient, _given(torch.float32))
    plan = schedule(program, OPTIONS, target)
    statements = [
        statement
        for step in plan.steps
        if isinstance(step, Kernel)
        for phase in step.phases
        for statement in (*phase.body, *phase.row)
    ]
    folded = [s.body for s in statements if isinstance(s, Accumulate)]
    compared = [b for b in folded for n in walk(b) if isinstance(n, Apply) and n.op == "eq"]
    assert folded and not compared


def test_training_is_eager_s() -> None:
    def gradient(logits: Tensor, labels: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(F.cross_entropy(logits, labels), logits)
        return found

    torch.manual_seed(0)
    logits, labels = torch.randn(16, 40, requires_grad=True), torch.randint(0, 40, (16,))
    labels[3] = -100
    found = braze.compile(gradient)(logits, labels)
    torch.testing.assert_close(found, gradient(logits, labels), rtol=1e-5, atol=1e-8)
