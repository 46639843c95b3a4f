"""A parameter that a graph wrote to and then read with gradients: eager saves the parameter itself,
whose `.data` may be written to before the backward, and a compiled graph kept a copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def moved(w: torch.Tensor) -> None:
    with torch.no_grad():
        w.lerp_(torch.full_like(w, 4.0), 0.5)


def doubled(w: torch.Tensor) -> None:
    w.data.mul_(2)


def halved_data(w: torch.Tensor) -> None:
    w.data.mul_(0.5)


def halved_part_of_data(w: torch.Tensor) -> None:
    w.data.view(-1)[:1].mul_(0.5)


def halved(w: torch.Tensor) -> None:
    """Autograd sees that, and refuses the backward where it reads what was written."""
    with torch.no_grad():
        w.mul_(0.5)


def outcome(
    compiled: Callable[[Any], Any], reads: Any, before: Any, after: Any, is_inside: bool
) -> Any:
    w = torch.tensor([1.0, 3.0], requires_grad=True)

    def step() -> torch.Tensor:
        before(w)
        loss = reads(w).sum()
        if is_inside:
            after(w)
        return loss  # type: ignore[no-any-return]

    run = compiled(step)
    found: list[Any] = []
    for _ in range(2):
        loss = run()
        if not is_inside:
            after(w)
        try:
            loss.backward()
        except RuntimeError as error:
            found.append("modified by an inplace operation" in str(error))
        gradient = None if w.grad is None else w.grad.clone()
        found.append((loss.detach(), gradient, w.detach().clone(), w._version))
    return found


@pytest.mark.parametrize("reads", [torch.square, torch.exp, lambda w: w * 3])
@pytest.mark.parametrize("before", [moved, doubled])
@pytest.mark.parametrize(
    ("after", "is_inside"),
    [
        (halved_data, True),
        (halved_data, False),
        (halved_part_of_data, True),
        (halved_part_of_data, False),
        (halved, False),
    ],
)
def test_the_backward_reads_what_is_there(
    reads: Any, before: Any, after: Any, is_inside: bool
) -> None:
    def compiled(step: Any) -> Any:
        return braze.compile(step, backend="aot_eager")

    expected = outcome(lambda step: step, reads, before, after, is_inside)
    found = outcome(compiled, reads, before, after, is_inside)
    torch.testing.assert_close(found, expected)
