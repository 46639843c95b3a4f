"""Which products of matrices are kernels of ours because of how their results' rows begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from braze.codegen.triton import generate, supports
from braze.ir.kernels.loops import Buffer, BufferView, ExternCall, LoopProgram
from braze.ir.kernels.schedule import Kernel, Schedule, device_runs, kernel_runs
from braze.lower import lower
from braze.options import Options
from braze.schedule import CUDA, schedule
from braze.schedule.target import Target
from braze.tracing import Tracer
from tests.unit.codegen.programs import view as whole
from tests.unit.codegen.running import OPTIONS

HALF = torch.bfloat16


def _empty(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def _planned(
    given: list[torch.Tensor],
    options: Options = OPTIONS,
    target: Target = CUDA,
    function: Callable[..., Any] = F.linear,
) -> Schedule:
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        finished = tracer.finish([function(*[tracer.add_input(x) for x in given])])
    return schedule(lower(finished.graph, options, supports), options, target)


def _is_kernel(*given: torch.Tensor, options: Options = OPTIONS, target: Target = CUDA) -> bool:
    steps = _planned([*given], options, target).steps
    return any(isinstance(step, Kernel) and step.product is not None for step in steps)


def test_logits_of_an_odd_vocabulary() -> None:
    assert _is_kernel(_empty(4096, 768), _empty(50257, 768))
    assert _is_kernel(_empty(8192, 768), _empty(30522, 768), _empty(30522))
    assert _is_kernel(
        _empty(8192, 768, dtype=torch.float16), _empty(30522, 768, dtype=torch.float16)
    )


OTHERS: dict[str, list[torch.Tensor]] = {
    "aligned": [_empty(4096, 768), _empty(50264, 768)],
    "small": [_empty(512, 768), _empty(50257, 768)],
    "few rows": [_empty(64, 256), _empty(1000001, 256)],
    "little is summed": [_empty(4096, 64), _empty(50257, 64)],
    "an operand is odd, too": [_empty(4096, 769), _empty(50257, 769)],
    "float32": [_empty(4096, 768, dtype=torch.float32), _empty(50257, 768, dtype=torch.float32)],
}


@pytest.mark.parametrize("given", OTHERS.values(), ids=OTHERS)
def test_others_are_the_librarys(given: list[torch.Tensor]) -> None:
    assert not _is_kernel(*given)


def test_it_has_to_be_wanted() -> None:
    """numerics="eager" keeps the library's kernels; a device may have too little shared memory."""
    given = _empty(4096, 768), _empty(50257, 768)
    assert not _is_kernel(*given, options=replace(OPTIONS, numerics="eager"))
    assert not _is_kernel(*given, target=replace(CUDA, writes_odd_rows=False))


def test_a_product_on_the_host_stays_there() -> None:
    """Of a program that has another device, which is the kernels'."""
    plan = _planned([_empty(4096, 768), _empty(50257, 768)])
    x, w = plan.inputs
    product = Buffer("y", HALF, (4096, 50257), (50257, 1), x.device)
    turned = BufferView(w, (768, 50257), (1, 768), 0, HALF)
    call = ExternCall(torch.ops.aten.mm.default, (whole(x), turned), (), (product,))
    elsewhere = Buffer("z", HALF, (4,), (1,), torch.device("meta"))
    for inputs, is_kernel in (((x, w), True), ((x, w, elsewhere), False)):
        made = schedule(LoopProgram(inputs, (), (call,), (whole(product),), ()), OPTIONS, CUDA)
        assert isinstance(made.steps[0], Kernel) is is_kernel


def test_large_results_are_of_large_blocks() -> None:
    def constants(*given: torch.Tensor) -> Any:
        (launches,) = generate(_planned([*given]), OPTIONS).launches
        return launches[0].function.constants

    assert constants(_empty(4096, 768), _empty(50257, 768)) == (128, 256)


def test_what_is_large_begins_a_run_on_a_device() -> None:
    """So that what only the kernels before read goes before it is made."""

    def function(x: Any, w: Any) -> Any:
        return F.linear(x.sin(), w)

    plan = _planned([_empty(4096, 768), _empty(50257, 768)], function=function)
    assert kernel_runs(plan) == [(0, 1)]
    assert device_runs(plan) == [(0, 0), (1, 1)]
    plan = _planned([_empty(4096, 768)], function=lambda x: x.sin().sum(0).exp())
    assert device_runs(plan) == kernel_runs(plan) == [(0, len(plan.steps) - 1)]
    plan = _planned([_empty(6, 4096, 4096)], function=torch.sin)  # what is first anyway
    assert device_runs(plan) == [(0, 0)]
