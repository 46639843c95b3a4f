"""Which write-backs kernels do themselves, in which order, and what a fault leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from braze.codegen.cpp import generate
from braze.ir.graphs.print_graph import parse_graph
from braze.ir.graphs.run_graph import run_graph
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.runtime.link.link_cpu import link
from braze.schedule import schedule

OPTIONS = config.snapshot()


def planned(*lines: str) -> Schedule:
    graph = parse_graph("graph {\n" + "".join(f"  {line}\n" for line in lines) + "}\n")
    return schedule(lower(rewrite(graph, OPTIONS), OPTIONS), OPTIONS)


VECTOR = "f32[64][1]cpu"
SQUARE = "f32[8, 8][8, 1]cpu"


def test_update_is_written_by_its_kernel() -> None:
    plan = planned(
        f"input %0: {VECTOR}",
        f"input %1: {VECTOR}",
        f"%2: {VECTOR} = aten.add.Tensor(%0, %1, alpha=-0.1)",
        "write %0 <- %2",
    )
    (kernel,) = plan.steps
    assert plan.in_place == (plan.inputs[0],) and plan.settled == 0
    assert not plan.mutations and not plan.slots
    assert set(kernel.memory) == set(plan.inputs)  # type: ignore[union-attr]


def test_write_in_place_comes_after_what_may_fault() -> None:
    plan = planned(
        f"input %0: {SQUARE}",
        f"input %1: {SQUARE}",
        f"%2: {SQUARE} = aten.mul.Tensor(%0, 2.0)",
        f"%3: {SQUARE} = aten.mm.default(%0, %1)",
        f"%4: {SQUARE} = aten.exp.default(%3)",
        "write %0 <- %2",
        "output %4",
    )
    assert [isinstance(step, ExternStep) for step in plan.steps] == [True, False, False]
    assert plan.in_place == (plan.inputs[0],) and plan.settled == 2


@pytest.mark.parametrize(
    "lines",
    [
        # the value is a result, too
        (f"%2: {VECTOR} = aten.mul.Tensor(%0, %1)", "write %0 <- %2", "output %2"),
        # other elements are read than are written
        (f"%2: {VECTOR} = aten.flip.default(%0, [0])", "write %0 <- %2"),
        # two inputs get each other's contents
        (
            f"%2: {VECTOR} = aten.mul.Tensor(%0, 2.0)",
            f"%3: {VECTOR} = aten.mul.Tensor(%1, 3.0)",
            "write %0 <- %3",
            "write %1 <- %2",
        ),
        # what is written is read afterwards as it was
        (
            f"%2: {VECTOR} = aten.mul.Tensor(%0, %1)",
            f"%3: {VECTOR} = aten.exp.default(%0)",
            "write %0 <- %2",
            "output %3",
        ),
        # the sum needs all elements before the first is written
        (
            "%2: f32[][]cpu = aten.sum.default(%0)",
            f"%3: {VECTOR} = aten.mul.Tensor(%0, %2)",
            "write %0 <- %3",
        ),
        # an ATen kernel needs it
        (
            f"%2: {VECTOR} = aten.mul.Tensor(%0, %1)",
            f"%3: {VECTOR} = aten.cumsum.default(%2, 0)",
            "write %0 <- %2",
            "output %3",
        ),
    ],
)
def test_contents_are_right_in_place_or_not(lines: tuple[str, ...]) -> None:
    text = "\n".join([f"  input %0: {VECTOR}", f"  input %1: {VECTOR}", *lines])
    graph = parse_graph(f"graph {{\n{text}\n}}\n")
    plan = schedule(lower(rewrite(graph, OPTIONS), OPTIONS), OPTIONS)
    run: Any = link(plan, generate(plan, OPTIONS), OPTIONS)
    ours, expected = ([torch.linspace(0, 1, 64), torch.linspace(1, 2, 64)] for _ in range(2))
    found, wanted = run(ours), run_graph(graph, expected)
    for a, b in zip([*ours, *found], [*expected, *wanted], strict=True):
        torch.testing.assert_close(a, b)


def _with_index(parameter: Tensor, table: Tensor, index: Tensor) -> Tensor:
    with torch.no_grad():
        parameter.mul_(2)
    return table[index].sum()


def test_nothing_is_written_before_a_fault() -> None:
    compiled = braze.compile(_with_index)
    parameter, table = torch.ones(1000), torch.randn(10)
    compiled(parameter, table, torch.tensor([1, 9]))
    assert parameter[0] == 2
    with pytest.raises(IndexError):
        compiled(parameter, table, torch.tensor([1, 10]))
    assert parameter[0] == 4  # eager raises after the update


def test_versions_go_up() -> None:
    def step(parameter: Tensor) -> None:
        parameter.mul_(2)

    compiled: Callable[[Tensor], None] = braze.compile(step)
    tensor = torch.ones(8)
    versions = [tensor._version]
    for _ in range(2):
        compiled(tensor)
        versions.append(tensor._version)
    assert versions[0] < versions[1] < versions[2]
    assert tensor.tolist() == [4.0] * 8
