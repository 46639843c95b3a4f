"""User backends see every torch-level call, by a target that fx can print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

X = torch.tensor([0.5, -1.0, 2.0])


def calls_seen(function: Callable[..., Any], *args: Any) -> list[list[str]]:
    """The names of the calls in each graph, after a run whose result is eager's."""
    graphs: list[list[str]] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        called = [node.target for node in module.graph.nodes if node.op.startswith("call")]
        graphs.append([getattr(target, "__name__", str(target)) for target in called])
        return module

    found, expected = braze.compile(function, backend=backend, fullgraph=True)(*args), None
    expected = function(*args)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    return graphs


def answers_without_tensors(x: torch.Tensor) -> tuple[bool, int]:
    y = x + 1
    return torch.is_floating_point(y), y.dim()


def part_is_unread(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    y.sin()
    return x * 2


def chain_is_unread(x: torch.Tensor) -> None:
    y = x + 1
    y.mul_(2).cos()


def written_and_unread(x: torch.Tensor) -> bool:
    z = x.clone()
    return z.add_(1) is z


UNREAD: dict[Callable[..., Any], tuple[tuple[torch.Tensor, ...], list[str]]] = {
    answers_without_tensors: ((X,), ["add"]),
    part_is_unread: ((X, X + 1), ["sin", "mul"]),
    chain_is_unread: ((X,), ["add", "mul_", "cos"]),
    written_and_unread: ((X,), ["clone", "add_"]),
}


@pytest.mark.parametrize("program", UNREAD, ids=lambda program: program.__name__)
def test_calls_that_nobody_reads_are_handed_over(program: Callable[..., Any]) -> None:
    args, calls = UNREAD[program]
    assert calls_seen(program, *args) == [calls]


@pytest.mark.parametrize("program", UNREAD, ids=lambda program: program.__name__)
def test_own_graphs_have_no_calls_that_nobody_reads(program: Callable[..., Any]) -> None:
    args, _ = UNREAD[program]
    kept = 1 if program is part_is_unread else 0
    assert braze.explain(program)(*args).op_count == kept


def test_calls_in_place_on_what_nobody_reads_leave_inputs() -> None:
    x = X.clone()
    calls_seen(chain_is_unread, x)
    assert torch.equal(x, X)


LEGACY = [
    getattr(torch, name)
    for name in dir(torch)
    if name.endswith("Tensor") and name not in ("Tensor", "QInt8Tensor") and name[0].isupper()
]


@pytest.mark.parametrize("kind", LEGACY, ids=lambda kind: kind.__name__)
def test_legacy_constructors_are_printed(kind: Any) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * kind([1, 2, 0])

    (calls,) = calls_seen(program, X)
    assert calls[-1] == "mul"
