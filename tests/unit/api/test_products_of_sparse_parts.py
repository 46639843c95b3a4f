"""Products of tensors whose dimensions are joined: whether that takes a copy depends on sizes, and
shows in no result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import braze
from braze.trace import Journal
from tests.unit.api.side_by_side import Program, compare_calls

W = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
B = torch.randn(3, generator=torch.Generator().manual_seed(1))


def by_itself(x: torch.Tensor) -> torch.Tensor:
    y = x[:, ::2]
    return y @ y.mT


def by_weight(x: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x[:, 1::2], W).transpose(1, 2)


def by_vector(x: torch.Tensor) -> torch.Tensor:
    return x[:, ::2].matmul(W[:, 0]).sum(-1)


def weight_by_it(x: torch.Tensor) -> torch.Tensor:
    return W.mT @ x[:, ::2].mT


def projected(x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x[:, ::2], W.mT, B).relu()


def of_parts(x: torch.Tensor) -> torch.Tensor:
    y = x.flatten(0, 1).unflatten(0, x.shape[:2])[:, None, ::2]
    return y @ y.mT


PROGRAMS = [by_itself, by_weight, by_vector, weight_by_it, projected, of_parts]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("sizes", [(7, 8, 12, 4, 5), (8, 7, 4, 9)])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_one_compile(
    journal: Journal, program: Program, backend: str, sizes: Any, with_gradients: bool
) -> None:
    compiled = braze.compile(
        program, dynamic=True, backend=backend, options={"suppress_errors": False}
    )
    torch.manual_seed(0)
    for size in sizes:
        compare_calls(program, compiled, torch.randn(3, size, 5), with_gradients)
    assert not journal.fallbacks(), journal.fallbacks()
    outcomes = [record.outcome for record in journal.records()]
    assert outcomes.count("graph") == 1 and set(outcomes) <= {"graph", "backward"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_static_first(journal: Journal, program: Program) -> None:
    compiled = braze.compile(program, options={"suppress_errors": False})
    with torch.no_grad():
        for size in (7, 9, 5, 11):
            x = torch.randn(3, size, 5)
            torch.testing.assert_close(compiled(x), program(x))
    assert len(journal.records()) == 2 and not journal.fallbacks()


def test_sizes_of_one_are_broadcast(journal: Journal) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x[: x.shape[0] // 2] @ y

    compiled = braze.compile(program, dynamic=True, options={"suppress_errors": False})
    with torch.no_grad():
        for count in (2, 3, 10, 11, 3):
            x, y = torch.randn(count, 4, 3), torch.randn(5, 3, 6)
            torch.testing.assert_close(compiled(x, y), program(x, y))
    assert not journal.fallbacks()
