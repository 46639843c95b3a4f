"""One call of a program and of its compilation, compared."""

from __future__ import annotations

from collections.abc import Callable

import torch

Program = Callable[[torch.Tensor], torch.Tensor]


def compare_calls(program: Program, compiled: Program, x: torch.Tensor, gradients: bool) -> None:
    """The results agree, and so do their strides; and the gradients of their squares, if asked."""
    mine, theirs = (x.clone().requires_grad_(gradients) for _ in range(2))
    expected, found = program(theirs), compiled(mine)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    if gradients:
        expected.square().sum().backward()
        found.square().sum().backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
