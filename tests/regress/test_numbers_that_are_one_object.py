"""`a is b` of numbers that are symbols: CPython has one object of each small integer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze

PAIRS = [(1, 1), (2, 2), (3, 3), (3, 4), (4, 3), (-5, -5), (256, 256), (3, True), (3, 3.0)]
LARGE = 10**4
THREE, FOUR = 3, 4


@pytest.mark.parametrize("dynamic", [None, True])
def test_identity_of_small_integers(dynamic: bool | None) -> None:
    compiled = braze.compile(
        lambda x, a, b: (x + 1, a is b, a is not b, a is THREE), dynamic=dynamic
    )
    x = torch.ones(2)
    for a, b in (*PAIRS, (3, None)):
        assert compiled(x, a, b)[1:] == (a is b, a is not b, a is THREE), (a, b)


def test_identity_of_sizes() -> None:
    compiled = braze.compile(
        lambda x: (x + 1, x.shape[0] is THREE, x.shape[0] + 1 is FOUR), dynamic=True
    )
    found = [compiled(torch.ones(n))[1:] for n in (2, 3, 4, 3)]
    assert found == [(False, False), (True, True), (False, False), (True, True)]


@pytest.mark.parametrize("make", [int, float], ids=["int", "float"])
def test_identity_of_equal_large_numbers(make: Any) -> None:
    compiled = braze.compile(lambda x, a, b: (x + a, a is b))
    x = torch.ones(2)
    compiled(x, make(LARGE), make(LARGE + 1))
    for n in range(LARGE + 2, LARGE + 5):
        one, other = make(str(n)), make(str(n))
        assert not compiled(x, one, other)[1]
        assert compiled(x, one, one)[1]
        assert not compiled(x, one, make(n + 1))[1]


def test_numbers_are_found_by_value() -> None:
    compiled = braze.compile(lambda x, n, items: (x + n, n in items, [n] == items, items.count(n)))
    for n in (1, 2, 3, 300, 301):
        for items in ([n], [int(str(n))], [n + 1], [float(n)]):
            assert compiled(torch.ones(2), n, items)[1:] == (
                n in items,
                [n] == items,
                items.count(n),
            )
