"""Backwards as kernels of a GPU: by Triton's interpreter, beside eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from braze.codegen.triton import generate
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule, Store
from braze.lower.operators import pooling_backward
from tests.unit.codegen.test_triton_products import planned
from tests.unit.codegen.triton_running import MARKS, OPTIONS, run_sources

pytestmark = MARKS

Tensor = torch.Tensor


def _backward(y: Tensor, dy: Tensor, x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    """As behind a batch norm and a relu."""
    z = torch.ops.aten.threshold_backward(dy, y, 0)
    sums = (z * (x - m[:, None, None])).sum((0, 2, 3)), z.sum((0, 2, 3))
    return (z - sums[1][:, None, None] / 9, *sums)


def _residual(y: Tensor, dy: Tensor, x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    """What is added up is a result, too."""
    z = torch.where(y <= 0, 0.0, dy + x)
    return z, (z * (x - m[:, None, None])).sum((0, 2, 3)), z.sum((0, 2, 3))


def _unlike(y: Tensor, dy: Tensor, x: Tensor, m: Tensor) -> tuple[Tensor, ...]:
    """One of what is read is laid out otherwise."""
    z = torch.where(y.contiguous() <= 0, 0.0, dy.transpose(2, 3))
    return z, (z * (x - m[:, None, None])).sum((0, 2, 3))


def _inputs(shape: tuple[int, ...]) -> list[Tensor]:
    torch.manual_seed(0)
    images = [torch.randn(shape).to(memory_format=torch.channels_last) for _ in range(3)]
    return [*images, torch.randn(shape[1])]


def _joined(plan: Schedule) -> list[Kernel]:
    """Kernels that store points and add them up."""
    kernels = [s for s in plan.steps if isinstance(s, Kernel) and s.lanes]
    return [k for k in kernels if any(isinstance(s, Store) for s in k.phases[0].body)]


@pytest.mark.parametrize(("function", "joined"), [(_backward, 1), (_residual, 1), (_unlike, 0)])
@pytest.mark.parametrize("shape", [(8, 64, 28, 28), (4, 48, 56, 49), (2, 300, 5, 6)])
def test_sums_compute_their_points(
    function: Callable[..., tuple[Tensor, ...]], joined: int, shape: tuple[int, ...]
) -> None:
    given = _inputs(shape)
    if function is _unlike and shape[2] != shape[3]:
        given[1] = given[1].transpose(2, 3)
    program, plan = planned(function, given)
    assert len(_joined(plan)) == joined
    found = run_sources(program, plan, generate(plan, OPTIONS), given)
    for mine, right in zip(found, function(*given), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-4, atol=2e-3)


POOLS = {
    "of ResNet": ((2, 5, 13, 14), (3, 2, 1, 1, False)),
    "beside each other": ((2, 5, 12, 14), (2, 2, 0, 1, False)),
    "over the end": ((2, 5, 12, 13), (3, 2, 0, 1, True)),
    "with gaps": ((2, 5, 12, 13), (2, 3, 0, 1, False)),
    "of two steps": ((2, 5, 12, 13), ([3, 2], [1, 2], [1, 0], 1, False)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", POOLS)
def test_gradients_of_maxima_are_gathered(
    name: str, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape, how = POOLS[name]
    kernel, stride, padding, dilation, ceil = how
    torch.manual_seed(0)
    x = torch.randint(4, shape).float().to(memory_format=layout)
    y, indices = torch.ops.aten.max_pool2d_with_indices(x, kernel, stride, padding, dilation, ceil)

    def function(dy: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        rest = (kernel, stride, padding, dilation, ceil, indices)
        return torch.ops.aten.max_pool2d_with_indices_backward(dy, x, *rest)

    monkeypatch.setattr(pooling_backward, "_GATHERING", {"cpu", "cuda"})
    given = [torch.randn(y.shape).to(memory_format=layout), x, indices]
    program, plan = planned(function, given)
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    (found,) = run_sources(program, plan, generate(plan, OPTIONS), given)
    torch.testing.assert_close(found, function(*given))
