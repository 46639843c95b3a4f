"""NumPy's floats are Python floats too, and are made anew wherever one is computed: guarded by the
object, a program that was given one compiled at each call."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import braze
from braze.trace import Journal


def scaled(x: torch.Tensor, scale: Any) -> torch.Tensor:
    return x * scale + (1.0 if scale > 2 else 0.0)


def behind_a_break(x: torch.Tensor) -> torch.Tensor:
    return x / np.sqrt(16.0)


def kept(x: torch.Tensor, scale: Any) -> Any:
    return x + 1, scale, [scale, type(scale), isinstance(scale, float)]


def read(x: torch.Tensor, scale: Any) -> Any:
    return x * scale.item(), scale + 1, -scale, round(scale, 1), {scale: 2}, f"{scale:.2f}"


def test_equal_numbers_are_one_program(journal: Journal) -> None:
    compiled = braze.compile(scaled)
    for number in (2.5, 2.5, 2.5):
        torch.testing.assert_close(compiled(torch.ones(3), np.float64(number)), torch.ones(3) * 3.5)
    assert len(journal.records()) == 1
    torch.testing.assert_close(compiled(torch.ones(3), np.float64(1.5)), torch.ones(3) * 1.5)
    torch.testing.assert_close(compiled(torch.ones(3), 2.5), torch.ones(3) * 3.5)  # another class


def test_signs_of_zero_and_nan_differ(journal: Journal) -> None:
    compiled = braze.compile(lambda x, scale: (x * scale, math.copysign(1.0, scale)))
    for number in (0.0, -0.0, float("nan"), 0.0, float("nan")):
        product, sign = compiled(torch.ones(1), np.float64(number))
        assert math.copysign(1.0, product.item()) == sign == math.copysign(1.0, number)
        assert math.isnan(product.item()) is math.isnan(number)
    assert len(journal.records()) == 3


COMPARISONS = ["n == a", "a != n", "n < a", "a >= n", "x.shape[0] <= a", "n * 1.5 > a", "a == [4]"]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_comparisons_give_numpys_truths(comparison: str, dynamic: bool | None) -> None:
    """With a number that is a symbol they gave Python's."""
    compared = eval(f"lambda x, n, a: (x * 2 if ({comparison}) else x, {comparison})")
    compiled = braze.compile(compared, dynamic=dynamic)
    for n in (3, 4, 5, 3.5, 4.0, 4.5, 5.5):
        result, truth = compiled(torch.ones(int(n)), n, np.float64(4))
        expected, expected_truth = compared(torch.ones(int(n)), n, np.float64(4))
        torch.testing.assert_close(result, expected)
        assert type(truth) is type(expected_truth)
        assert np.all(truth == expected_truth)


def test_sizes_behind_a_break(journal: Journal) -> None:
    """CTRL's square root: the part behind it was compiled at each call, whatever the sizes."""
    compiled = braze.compile(behind_a_break)
    counts = []
    for batch in (2, 3, 5, 4, 6):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(compiled(x), behind_a_break(x))
        counts.append(len(journal.records()))
    assert counts[1] == counts[-1]


@pytest.mark.parametrize("program", [kept, read], ids=lambda program: program.__name__)
def test_results_are_eagers(program: Any) -> None:
    compiled = braze.compile(program)
    for number in (2.25, 2.25, 3.5):
        scale = np.float64(number)
        mine, theirs = compiled(torch.ones(2), scale), program(torch.ones(2), scale)
        torch.testing.assert_close(mine[0], theirs[0])
        assert mine[1:] == theirs[1:]
        assert [*map(type, mine[1:])] == [*map(type, theirs[1:])]
        if program is kept:
            assert mine[1] is scale and mine[2][0] is scale
