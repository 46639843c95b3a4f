"""A slice that begins before a tensor does, or at a symbolic place from the end, was compiled to a
view that begins outside of the memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal

PROGRAMS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "last": lambda x, n: (x * 2)[-3:],
    "last of half": lambda x, n: (x * 2)[: x.shape[0] // 2][-3:],
    "from the end": lambda x, n: (x * 2)[-n:] + 1,
    "to the end": lambda x, n: (x * 2)[:-n],
    "one from the end": lambda x, n: (x * 2)[-n],
    "views": lambda x, n: x[-n:],
    "written": lambda x, n: (x * 1).index_fill_(0, torch.tensor([1]), 2.0)[-n:].mul_(3),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_bounds(journal: Journal, name: str, with_gradients: bool) -> None:
    program = PROGRAMS[name]
    compiled = braze.compile(program, dynamic=True, options={"suppress_errors": False})
    for length, n in ((7, 3), (4, 2), (9, 8), (4, 4), (5, 2), (4, 7)):
        if n > length and "one" in name:
            continue
        x = torch.arange(length * 2.0).view(length, 2)
        mine, theirs = (x.clone().requires_grad_(with_gradients) for _ in range(2))
        expected, found = program(theirs, n), compiled(mine, n)
        torch.testing.assert_close(found, expected)
        if with_gradients:
            expected.square().sum().backward()
            found.square().sum().backward()
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert not journal.fallbacks(), journal.fallbacks()


def test_a_symbol_that_no_passed_number_gives() -> None:
    """A number that is passed may be an expression that cannot be solved: then sizes are fixed."""

    def entry(y: torch.Tensor, n: int, count: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        before = y + count / 4
        count += n
        for _ in range(n % 3):
            count += 1
        return before, y + (count % 3) / 4, count & 3

    options = {"suppress_errors": False}
    compiled = braze.compile(entry, backend="aot_eager", dynamic=True, options=options)
    for n, count in ((2, 3), (3, 4), (5, 6)):
        y = torch.ones(3)
        expected, found = entry(y, n, count), compiled(y, n, count)
        assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
        assert found[2] == expected[2]
