"""The measure of rounding: what is only rounded is met, what is wrong is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.differential.rounding import rounded

Program = Callable[[torch.Tensor], torch.Tensor]


def cancelling(x: torch.Tensor) -> torch.Tensor:
    """676 values whose sum is zero: all that is left of it are roundings."""
    scaled = torch.relu(x * 250).reshape(26, 26)
    return (scaled - scaled.mean(-1, keepdim=True)).view(1, -1).sum(1)


def weighted(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1) @ x.mT / x.shape[-1]


def padded(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 1)) - x.mean(-1, keepdim=True)


def one_missed(x: torch.Tensor) -> torch.Tensor:
    scaled = torch.relu(x * 250).reshape(26, 26)
    return (scaled - scaled.mean(-1, keepdim=True)).view(1, -1)[:, :-1].sum(1)


def over_padding(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, 1)) - x.sum(-1, keepdim=True) / (x.shape[-1] + 1)


def moved(x: torch.Tensor) -> torch.Tensor:
    return weighted(x).roll(1, 0)


def two_swapped(x: torch.Tensor) -> torch.Tensor:
    made = weighted(x).clone()
    made[0, 0], made[0, 1] = made[0, 1].clone(), made[0, 0].clone()
    return made


def tail_of_the_line_before(x: torch.Tensor) -> torch.Tensor:
    made = padded(x).clone()
    made[-1, -2:] = made[-2, -2:]
    return made


def padding_not_written(x: torch.Tensor) -> torch.Tensor:
    made = padded(x).clone()
    made[0, -1] += 1e-3
    return made


def small_moved(x: torch.Tensor) -> torch.Tensor:
    """A softmax of which most is far below the largest value: as exact as the rest."""
    return (x * 4).softmax(-1).roll(1, -1)


WRONG: list[tuple[Program, Program]] = [
    (cancelling, one_missed),
    (weighted, moved),
    (weighted, two_swapped),
    (padded, over_padding),
    (padded, tail_of_the_line_before),
    (padded, padding_not_written),
    (lambda x: (x * 4).softmax(-1), small_moved),
]


@pytest.mark.parametrize(("program", "wrong"), WRONG, ids=lambda p: p.__name__)
@pytest.mark.parametrize("seed", range(5))
def test_what_is_wrong_is_seen(program: Program, wrong: Program, seed: int) -> None:
    x = torch.randn(26, 26, generator=torch.Generator().manual_seed(seed))
    measured, eager = rounded(program, x), program(x)
    assert measured.is_met(eager, eager)
    assert not measured.is_met(wrong(x), eager)


def one_by_one(x: torch.Tensor) -> torch.Tensor:
    """The cancelling sum in another order, and its means in float64: rounded otherwise."""
    scaled = torch.relu(x * 250).reshape(26, 26)
    found = (scaled - scaled.double().mean(-1, keepdim=True).float()).view(1, -1)
    return found.flip(1).cumsum(1)[:, -1]


@pytest.mark.parametrize("seed", range(20))
def test_other_orders_of_a_sum_are_met(seed: int) -> None:
    x = torch.randn(26, 26, generator=torch.Generator().manual_seed(seed))
    eager = cancelling(x)
    assert rounded(cancelling, x).is_met(one_by_one(x), eager)


def test_zeros_and_what_is_only_moved_are_exact() -> None:
    x = torch.randn(4, 5)
    measured = rounded(lambda x: torch.nn.functional.pad(x.flip(0).relu(), (1, 2)), x)
    assert not measured.error.any() and measured.exact.dtype is torch.float64
