"""Values scattered by kernels for a GPU, run by Triton's interpreter, or by a GPU."""

from __future__ import annotations

import pytest
import torch

from braze.codegen.triton import alternatives
from braze.ir.kernels.kernel import DeviceFunction
from braze.ir.kernels.loops import LoopProgram
from braze.options import Options
from braze.schedule import CUDA, schedule
from tests.unit.codegen.programs import F32, histogram, scattered
from tests.unit.codegen.triton_running import MARKS, OPTIONS, check, generated

pytestmark = MARKS

# The interpreter keeps bfloat16 as integers, and adds those.
ADDED = [F32, torch.float64, torch.float16, torch.int32, torch.int64]


def _functions(made: LoopProgram) -> list[DeviceFunction]:
    _, sources = generated(made)
    return [launch.function for step in sources.launches for launch in step]


def _values(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers of which sums are the same in any order."""
    return torch.randint(-8, 8, shape).to(dtype)


@pytest.mark.parametrize("dtype", ADDED)
@pytest.mark.parametrize(
    ("rows", "columns", "into"), [(50, 33, 7), (3, 1, 1), (0, 5, 4), (1, 9, 2)]
)
def test_sums(rows: int, columns: int, into: int, dtype: torch.dtype) -> None:
    made = scattered("add", rows, columns, into, dtype)
    places = torch.randint(0, into, (rows,))
    check(made, [_values((into, columns), dtype), _values((rows, columns), dtype), places])


@pytest.mark.parametrize("dtype", [*ADDED, torch.bfloat16, torch.int8, torch.uint8])
def test_values_at_different_places(dtype: torch.dtype) -> None:
    made = scattered("set", 30, 70, 64, dtype)
    given = [torch.ones(64, 70).to(dtype), torch.ones(30, 70).to(dtype) * 3]
    check(made, [*given, torch.randperm(64)[:30]])


@pytest.mark.parametrize("points", [1, 100, 5000])
def test_a_value_that_is_the_same_at_every_point(points: int) -> None:
    """It is added once a point, not once a program."""
    check(histogram(points, 10), [torch.randint(0, 10, (points,))])


def test_the_producer_is_in_the_kernel_that_scatters() -> None:
    """Two kernels: the contents, and the values computed, checked and added."""
    plan, _ = generated(scattered("add", 500, 64, 70))
    assert len(plan.steps) == 2
    first, second = _functions(scattered("add", 500, 64, 70))
    assert "tl.atomic_add" not in first.text and not first.checked
    assert "tl.atomic_add" in second.text and "sem='relaxed'" in second.text
    assert "tl.device_assert" in second.text and second.checked


def test_tuning_does_not_try_scatters() -> None:
    """Its memory holds no indices: what it would time is one element that all are added to."""
    plan = schedule(scattered("add", 5000, 64, 70), OPTIONS, CUDA)
    copy, scatter = alternatives(plan, Options())
    assert len(copy) > 1
    assert len(scatter) == 1
