"""Which copies are made for what is scattered into."""

from __future__ import annotations

from dataclasses import replace

import pytest

from braze.ir.graphs.print_graph import parse_graph
from braze.ir.kernels.loops import Scatter
from braze.ir.kernels.schedule import ExternStep, Kernel, Schedule, Store, scatters
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.schedule import CPU, CUDA, Target, schedule

OPTIONS = config.snapshot()
CACHE = "f32[4, 64, 16][1024, 16, 1]cpu"
NEW = "f32[4, 3, 16][48, 16, 1]cpu"
PLACES = "i64[3][1]cpu"
SQUARE = "f32[8, 8][8, 1]cpu"
ROWS = "f32[3, 8][8, 1]cpu"


def planned(*lines: str, target: Target = CPU) -> Schedule:
    graph = parse_graph("graph {\n" + "".join(f"  {line}\n" for line in lines) + "}\n")
    return schedule(lower(rewrite(graph, OPTIONS), OPTIONS), OPTIONS, target)


def kernels(plan: Schedule) -> list[Kernel]:
    return [step for step in plan.steps if isinstance(step, Kernel)]


WRITE = (
    f"input %0: {CACHE}",
    f"input %1: {NEW}",
    f"input %2: {PLACES}",
    f"%3: {NEW} = aten.mul.Tensor(%1, 2.0)",
    f"%4: {CACHE} = aten.index_copy.default(%0, 1, %2, %3)",
    "write %0 <- %4",
)


@pytest.mark.parametrize("target", [CPU, CUDA])
def test_an_input_is_scattered_into(target: Target) -> None:
    """On the CPU behind a kernel that checks the places."""
    plan = planned(*WRITE, f"%5: {CACHE} = aten.exp.default(%4)", "output %5", target=target)
    assert plan.in_place == (plan.inputs[0],) and not plan.mutations
    stored = [s.target for k in kernels(plan) for s in scatters(k)]
    assert stored == [plan.inputs[0]]
    assert len(plan.steps) == (3 if target is CPU else 2)


def test_places_are_checked_before_anything_is_written() -> None:
    plan = planned(*WRITE, "output %3")
    assert [len(scatters(kernel)) for kernel in kernels(plan)][:1] == [0]
    (store,) = scatters(kernels(plan)[-1])
    assert isinstance(store.value, Scatter) and "checked" not in str(store.value.positions)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            (*WRITE[:3], f"%6: {CACHE} = aten.exp.default(%0)", *WRITE[3:], "output %6"),
            id="read before: a second run would read what the first wrote",
        ),
        pytest.param((*WRITE, "output %4"), id="a result"),
        pytest.param((*WRITE[:4], WRITE[4].replace("index_copy", "index_add"), WRITE[5]), id="sum"),
    ],
)
def test_an_input_is_copied(lines: tuple[str, ...]) -> None:
    plan = planned(*lines)
    assert not any(s.target in plan.inputs for k in kernels(plan) for s in scatters(k))


@pytest.mark.parametrize("target", [CPU, CUDA])
def test_library_calls_may_read_what_was_written_to(target: Target) -> None:
    lines = (*WRITE, f"%5: {CACHE} = aten.cumsum.default(%4, 1)")
    plan = planned(*lines, "output %5", target=target)
    assert plan.in_place == (plan.inputs[0],)
    call = plan.steps[-1]
    assert isinstance(call, ExternStep) and call.call.args[0].buffer is plan.inputs[0]


SUMS = (
    f"input %0: {SQUARE}",
    f"input %1: {ROWS}",
    f"input %2: {PLACES}",
    f"%3: {SQUARE} = aten.mm.default(%0, %0)",
    f"%4: {SQUARE} = aten.index_add.default(%3, 0, %2, %1)",
)


def test_results_of_library_calls_are_added_to() -> None:
    plan = planned(*SUMS, f"%5: {SQUARE} = aten.index_add.default(%4, 0, %2, %1)", "output %5")
    first, *others = plan.steps
    assert isinstance(first, ExternStep) and len(others) == 2
    made = first.call.outputs[0]
    assert [s.target for k in kernels(plan) for s in scatters(k)] == [made, made]
    assert plan.outputs[0].buffer is made
    assert made not in plan.fresh and not plan.slots


def test_what_is_read_later_is_copied() -> None:
    plan = planned(*SUMS, f"%5: {SQUARE} = aten.mul.Tensor(%3, %4)", "output %5")
    first = plan.steps[0]
    assert isinstance(first, ExternStep)
    assert all(s.target is not first.call.outputs[0] for k in kernels(plan) for s in scatters(k))


def test_a_library_call_writes_to_what_it_is_given() -> None:
    line = f"%4: {SQUARE} = aten.scatter_reduce.two(%3, 0, %2, %1, 'amax')"
    lines = [*SUMS[:2], "input %2: i64[3, 8][8, 1]cpu", SUMS[3], line, "output %4"]
    for target in (CPU, CUDA):
        plan = planned(*lines, target=target)
        _, step = plan.steps
        assert isinstance(step, ExternStep)
        assert str(step.in_place_op) == "aten.scatter_reduce_.two"
        assert plan.outputs[0].buffer is step.call.outputs[0]


def test_rows_that_meet_on_an_element_are_one_task() -> None:
    """Their order counts on the CPU, on a device it does not."""
    plan = planned(*SUMS, "output %4")
    (kernel,) = kernels(plan)
    assert kernel.rows == () and len(kernel.phases[0].loops) == 2
    (kernel,) = kernels(planned(*SUMS, "output %4", target=CUDA))
    assert len(kernel.rows) + len(kernel.phases[0].loops) == 2 and kernel.rows


def test_rows_beside_each_other_are_shared() -> None:
    plan = planned(*WRITE, "output %3")
    kernel = kernels(plan)[-1]
    assert [size for _, size in kernel.rows] == [4]
    assert [size for _, size in kernel.phases[0].loops] == [3, 16]


def test_no_kernel_reads_and_scatters_one_buffer() -> None:
    lines = [*SUMS, f"%5: {ROWS} = aten.index_select.default(%4, 0, %2)"]
    lines += [f"%6: {SQUARE} = aten.index_add.default(%4, 0, %2, %5)", "output %6"]
    for target in (CPU, CUDA, replace(CUDA, small_points=1 << 20)):
        for kernel in kernels(planned(*lines, target=target)):
            stores = [s for s in kernel.phases[0].body if isinstance(s, Store)]
            changed = {s.target for s in scatters(kernel)}
            text = " ".join(str(s.value) for s in stores)
            assert not any(f"buffer={b!r}" in text for b in changed)
