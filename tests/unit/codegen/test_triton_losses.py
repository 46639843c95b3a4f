"""Folds of everything whose points are rows with facts of their own, as losses of log-softmaxes
are: cut into rows, so that each walks through memory, in the kernel that makes the facts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from braze.ir.kernels.schedule import Kernel
from braze.schedule import CUDA
from tests.unit.codegen.triton_running import MARKS, check, planned

pytestmark = MARKS

Tensor = torch.Tensor

SMALL = replace(CUDA, least_work=1000, least_part=256, enough_tasks=8)


def _divergence(a: Tensor, b: Tensor) -> Tensor:
    return F.kl_div(a.log_softmax(-1), b.log_softmax(-1), log_target=True, reduction="batchmean")


def _entropy(a: Tensor, b: Tensor) -> Tensor:
    return -(a.softmax(-1) * a.log_softmax(-1)).sum() + b.sum()


def _centred(a: Tensor, b: Tensor) -> Tensor:
    return (a - a.mean(-1, keepdim=True)).square().mean() + b.mean()


def _masked(a: Tensor, b: Tensor) -> Tensor:
    return F.smooth_l1_loss(a, b[:, :1].expand_as(a))


def _largest(a: Tensor, b: Tensor) -> Tensor:
    return (a * b[:, :1]).abs().max()


LOSSES: dict[str, tuple[Callable[..., Tensor], int]] = {
    "divergence": (_divergence, 3),
    "entropy": (_entropy, 4),
    "centred": (_centred, 4),
    "broadcast": (_masked, 2),
    "largest": (_largest, 2),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "row-major": lambda x: x,
    "column-major": lambda x: x.t().contiguous().t(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LOSSES)
def test_values(name: str, layout: str) -> None:
    function, _ = LOSSES[name]
    given = [LAYOUTS[layout](torch.randn(16, 640)) for _ in range(2)]
    program, _, inputs = planned(function, given, SMALL)
    check(program, inputs, SMALL)


@pytest.mark.parametrize("name", LOSSES)
def test_rows_are_parts(name: str) -> None:
    """Each kernel but the last is of the rows."""
    function, most = LOSSES[name]
    _, plan, _ = planned(function, [torch.randn(16, 640) for _ in range(2)], SMALL)
    kernels = [step for step in plan.steps if isinstance(step, Kernel)]
    assert len(kernels) <= most
    spaces = [[size for _, size in kernel.rows] for kernel in kernels]
    assert all(space == [16] for space in spaces[:-1]) and len(spaces) == len(plan.steps)
