"""The last few of a dimension that varies: how many compiles, and when they are a number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

import braze
from braze.trace import Journal
from tests.unit.api.side_by_side import compare_calls

Program = Callable[..., Any]


def last(x: torch.Tensor) -> torch.Tensor:
    return (x * 2)[-3:].relu()


def last_columns(x: torch.Tensor) -> torch.Tensor:
    y = x.mT.contiguous()[:, -3:]
    return y / y.shape[1] + x[:1].mT


def last_of_last(x: torch.Tensor) -> torch.Tensor:
    return x[1:][-4:][-2:].cumsum(0)


def last_of_half(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[: x.shape[0] // 2][-2:], x[-3:] * 2])


def all_but_some_of_last(x: torch.Tensor) -> torch.Tensor:
    return x[-4:-1].sum(0) + x[-5::2].mean(0)


def counted(x: torch.Tensor) -> torch.Tensor:
    return x[-x.shape[1] :].exp()


PROGRAMS: list[tuple[Program, Sequence[int]]] = [
    (last, (7, 3, 2, 4, 9, 2)),
    (last_columns, (7, 3, 2, 4, 9)),
    (last_of_last, (7, 4, 9, 5, 8)),
    (last_of_half, (9, 4, 6, 5, 13)),
    (all_but_some_of_last, (9, 3, 4, 6, 12)),
    (counted, (9, 3, 2, 12)),
]


def called(
    program: Program, compiled: Program, sizes: Sequence[int], with_gradients: bool = False
) -> None:
    torch.manual_seed(0)
    for size in sizes:
        compare_calls(program, compiled, torch.randn(size, 5), with_gradients)


def graphs(journal: Journal) -> int:
    """How many compiles there were, and that nothing fell back. A backward belongs to a forward."""
    assert not journal.fallbacks(), journal.fallbacks()
    outcomes = [record.outcome for record in journal.records()]
    assert set(outcomes) <= {"graph", "backward"}
    return outcomes.count("graph")


def compiled_for(program: Program, dynamic: bool | None, **named: Any) -> Program:
    return braze.compile(program, dynamic=dynamic, options={"suppress_errors": False}, **named)


@pytest.mark.parametrize(("program", "sizes"), PROGRAMS, ids=lambda v: getattr(v, "__name__", ""))
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("reversed_calls", [False, True])
def test_one_compile(
    journal: Journal,
    program: Program,
    sizes: Sequence[int],
    with_gradients: bool,
    reversed_calls: bool,
) -> None:
    called(
        program, compiled_for(program, True), sizes[:: -1 if reversed_calls else 1], with_gradients
    )
    assert graphs(journal) == 1


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize(
    ("sizes", "compiles"),
    [
        ((8, 5, 9, 3), 2),  # as many as are asked for: a number
        ((8, 5, 9, 2, 3, 7), 3),  # less: one more, for all sizes
        ((8, 2, 5, 3, 9), 2),  # less at the second one
        ((2, 8, 3, 2), 2),
    ],
)
def test_static_first(
    journal: Journal, sizes: Sequence[int], compiles: int, with_gradients: bool
) -> None:
    called(last, compiled_for(last, None), sizes, with_gradients)
    assert graphs(journal) == compiles


def weighed(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(2, 3) @ x[-3:]


def added(x: torch.Tensor) -> torch.Tensor:
    return x[-3:] + torch.arange(3.0)[:, None]


def convolved(x: torch.Tensor) -> torch.Tensor:
    return functional.conv1d(x.mT[:, None, -3:], torch.ones(2, 1, 3)).flatten(1)


def stored(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros(3, 5)
    state.copy_(x[-3:])
    return state * 2


def viewed(x: torch.Tensor) -> torch.Tensor:
    return (x + 1)[-3:].view(5, 3)


@pytest.mark.parametrize("program", [weighed, added, convolved, stored, viewed])
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_length_that_the_program_needs(
    journal: Journal, program: Program, dynamic: bool | None, with_gradients: bool
) -> None:
    called(program, compiled_for(program, dynamic), (7, 3, 4, 9), with_gradients)
    assert graphs(journal) == (1 if dynamic else 2)


def test_a_size_that_has_less_than_the_program_needs() -> None:
    compiled = compiled_for(weighed, True)
    compiled(torch.ones(4, 5))
    with pytest.raises(RuntimeError, match=r"shapes cannot be multiplied|mat1 and mat2"):
        compiled(torch.ones(2, 5))


def test_marked_dimensions(journal: Journal) -> None:
    compiled = compiled_for(last, None)
    x = torch.randn(7, 5)
    braze.mark_dynamic(x, 0, min=2, max=64)
    torch.testing.assert_close(compiled(x), last(x))
    called(last, compiled, (2, 3, 64))
    assert graphs(journal) == 1
