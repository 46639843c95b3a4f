"""A graph of ATen calls writes to its inputs at its end. What an in-place operator had read of a
view of one (`z[0].sin_()`) was saved for the backward as that view, not as the copy that in-place
operators save: the backward raised that it had been written to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import braze

Write = Callable[[torch.Tensor], object]


def _program(write: Write) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def program(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = y - 0.5
        write(z)
        torch.add(y, y, out=y)  # of what nothing needs: all of the graph is ATen calls
        return z

    return program


def _gradient(program: Callable[..., torch.Tensor]) -> torch.Tensor:
    x = torch.arange(9.0).reshape(3, 3).requires_grad_()
    program(x * 1, torch.tensor(-2.0)).sum().backward()
    assert x.grad is not None
    return x.grad


def _twice(z: torch.Tensor) -> None:
    z[0].sin_()
    z[0].cos_()


@pytest.mark.parametrize(
    "write",
    [
        lambda z: z.sin_(),
        lambda z: z[0].sin_(),
        lambda z: z.t()[1:, 0].sin_(),
        lambda z: z.view(-1)[1::2].sin_(),
        lambda z: z.diagonal().sin_(),
        _twice,
    ],
    ids=["all", "row", "part of a column", "strided", "diagonal", "twice"],
)
def test_what_an_in_place_operator_read_of_a_view(write: Write) -> None:
    compiled = braze.compile(_program(write), backend="eager", fullgraph=True)
    torch.testing.assert_close(_gradient(compiled), _gradient(_program(write)), rtol=0, atol=0)


def _reads_before(z: torch.Tensor) -> None:
    row = z[0]
    before = row.sin()
    row.cos_()
    z[1].add_(before)


@pytest.mark.parametrize("write", [lambda z: z[0].mul_(z[1]), _reads_before])
def test_what_other_operators_read_is_no_copy(write: Write) -> None:
    """Eager's backward raises, and so does the graph's."""
    compiled = braze.compile(_program(write), backend="eager", fullgraph=True)
    for program in (_program(write), compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            _gradient(program)
