"""Values scattered by kernels for a GPU, run by Triton's interpreter, or by a GPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from braze.codegen.triton import alternatives, generate, supports
from braze.ir.graphs.print_graph import parse_graph, print_graph
from braze.ir.kernels.kernel import DeviceFunction
from braze.ir.kernels.loops import LoopProgram
from braze.ir.kernels.schedule import ExternStep
from braze.lower import lower
from braze.options import Options
from braze.rewrite import rewrite
from braze.schedule import CUDA, schedule
from braze.tracing import Tracer
from tests.unit.codegen.programs import F32, histogram, scattered
from tests.unit.codegen.triton_running import (
    MARKS,
    OPTIONS,
    check,
    generated,
    run_sources,
)

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


def _put(target: Tensor, places: Tensor, values: Tensor) -> Tensor:
    return target.index_put((places,), values, accumulate=True)


def _put_pairs(target: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Of two dimensions at once, negative places among them, into zeros."""
    at = (places % 7, -1 - places % 3)
    return torch.zeros_like(target).index_put(at, values[:, 0] * 2, accumulate=True)


def _embedding(target: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """The gradient of a table, where rows of padding give none."""
    made: Tensor = torch.ops.aten.embedding_dense_backward(values, places, len(target), 3, False)
    return made


def _on_device(
    function: Callable[..., Tensor], given: list[Tensor]
) -> tuple[LoopProgram, list[Tensor]]:
    """The loops of a function of tensors on a GPU, and which of these are its inputs."""
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        finished = tracer.finish([function(*[tracer.add_input(x) for x in given])])
    graph = parse_graph(print_graph(finished.graph).replace("]cpu", "]cuda:0"))
    program = lower(rewrite(graph, OPTIONS), OPTIONS, supports)
    return program, [given[number] for number in finished.inputs]


@pytest.mark.parametrize("function", [_put, _put_pairs, _embedding], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [F32, torch.float64, torch.float16, torch.bfloat16])
def test_sums_that_eager_sorts(function: Callable[..., Tensor], dtype: torch.dtype) -> None:
    """As near to sums in float64 as eager's: those of half types are rounded once."""
    torch.manual_seed(0)
    target, values = torch.randn(7, 5).to(dtype), torch.randn(90, 5).to(dtype)
    places = torch.randint(0, 7, (90,))
    made, inputs = _on_device(function, [target, places, values])
    plan = schedule(made, OPTIONS, CUDA)
    assert not any(isinstance(step, ExternStep) for step in plan.steps)
    sources = generate(plan, OPTIONS)
    texts = [launch.function.text for step in sources.launches for launch in step]
    assert any("tl.atomic_add" in text for text in texts)
    (found,) = run_sources(made, plan, sources, inputs)
    exact = function(target.double(), places, values.double())
    least = torch.finfo(dtype).eps * exact.abs().clamp(min=1) * 4
    assert found.dtype == dtype and bool(((found.double() - exact).abs() <= least).all())
