"""`as_strided` with an offset, and `storage_offset()`, of an input: no guard on where the input
begins in its storage, so a later call read other memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

STORAGE = torch.arange(24.0)
Inputs = list[Callable[[], torch.Tensor]]
BEGIN: Inputs = [lambda offset=offset: STORAGE.clone()[offset : offset + 8] for offset in (0, 3, 5)]


def explicit(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((2, 2), (2, 1), 5) * 2


def of_a_view(x: torch.Tensor) -> torch.Tensor:
    return x[2:].as_strided((3,), (1,)) + x[1:].as_strided((2,), (1,), 6).sum()


def asked(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x * x.storage_offset(), x[2:].storage_offset()


def written_first(x: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    return x.as_strided((2,), (3,), 5) * 2


def written_through(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((2,), (2,), 5).mul_(10)
    x[1:].unfold(0, 2, 3).add_(1)
    return x.sum()


def a_result(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((3,), (1,), 5)


def outside(x: torch.Tensor) -> torch.Tensor:
    return x.as_strided((20,), (1,), 0) + x.sum()


PROGRAMS = [explicit, of_a_view, asked, written_first, written_through, a_result, outside]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0, 2)])
def test_inputs_that_begin_elsewhere(program: Callable[..., object], order: list[int]) -> None:
    compiled = braze.compile(program)
    for which in (*order, *order, *order):
        mine, theirs = BEGIN[which](), BEGIN[which]()
        found, expected = compiled(mine), program(theirs)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        torch.testing.assert_close(mine._base, theirs._base, rtol=0, atol=0)


def compiles(program: Callable[..., object]) -> int:
    """How many graphs inputs of three offsets need."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph

    compiled = braze.compile(program, backend=backend)
    for make in BEGIN:
        torch.testing.assert_close(compiled(make()), program(make()), rtol=0, atol=0)
    return len(graphs)


def test_the_offset_is_guarded_only_where_it_was_used() -> None:
    assert compiles(lambda x: x[2:] + x[:6].as_strided((6,), (1,))) == 1
    assert compiles(lambda x: (x + x.as_strided((1,), (1,), 5)).storage_offset() + x) == 3
    assert compiles(lambda x: (x + 1).storage_offset() + x) == 1


COPIES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: x[2:].clone().as_strided((2,), (1,), 1) * 2,
    lambda x: x.view(2, 4).t().clone().as_strided((2,), (1,), 1) * 2,
    lambda x: x[2:].contiguous().as_strided((2,), (1,), 4) * 2,
    lambda x: torch.as_strided_scatter(x[2:], torch.ones(2), (2,), (2,)) * 2,
    lambda x: torch.as_strided_scatter(x.view(2, 4).t() * 2, torch.ones(2), (2,), (2,), 1),
]


@pytest.mark.parametrize("number", range(len(COPIES)))
def test_strides_of_a_copy_that_is_left_out(number: int) -> None:
    compiled = braze.compile(COPIES[number])
    for make in BEGIN:
        assert torch.equal(compiled(make()), COPIES[number](make()))
