"""Which nodes of autograd's stand for a graph."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from braze.ir.graphs.graph import Output, Value
from braze.ir.types import TensorType
from braze.runtime.autograd.multi_root_nodes import ResultGroup, plan_nodes


def pair(*reached_from: set[int], results: int = 2, devices: tuple[str, ...] = ("cpu",) * 5) -> Any:
    """devices: of the inputs."""
    kinds = [TensorType(torch.float32, (2,), (1,), torch.device(d), True) for d in devices]
    outputs = [Output(Value(10 + number, kinds[0])) for number in range(results)]
    return SimpleNamespace(
        forward=SimpleNamespace(inputs=tuple(map(Value, range(9), kinds)), outputs=tuple(outputs)),
        is_differentiable=(True,) * results,
        reached_from=tuple(map(frozenset, reached_from)),
    )


def test_inputs_and_results_are_grouped() -> None:
    plan = plan_nodes(pair({0, 1}, {1}, {0, 1}, set(), {2}, results=3), range(5))
    assert plan is not None
    assert plan.sources == ((0, 2), (1,), (4,))
    assert plan.groups == (
        ResultGroup((0,), (0,)),
        ResultGroup((1,), (0, 1)),
        ResultGroup((2,), (2,)),
    )


def test_one_node_is_as_good() -> None:
    assert plan_nodes(pair({0, 1}, {0, 1}), range(2)) is None


def test_devices_have_threads_of_their_own() -> None:
    assert plan_nodes(pair({0}, {1}), range(2)) is not None
    assert plan_nodes(pair({0}, {1}, devices=("cpu", "meta")), range(2)) is None


def test_what_has_no_gradient_may_be_anywhere() -> None:
    """A learning rate on the host, beside parameters on a device."""
    assert plan_nodes(pair({0}, {1}, devices=("cpu", "cpu", "meta")), range(2)) is not None


def test_a_result_of_unknown_inputs_keeps_an_edge_to_each() -> None:
    assert plan_nodes(pair({0}, {0}), range(2)) is None
