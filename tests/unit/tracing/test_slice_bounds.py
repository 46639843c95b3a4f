"""Where slices of symbolic sizes begin and end, and what is assumed for that."""

from __future__ import annotations

from typing import Any

import pytest

from braze.shapes.facts import Facts
from braze.shapes.symbolic import symbol_size
from braze.tracing.symbolic.slice_bounds import slice_range


def sized(now: int, *, wants_one: bool = False, least: int = 2) -> tuple[Facts, Any]:
    facts = Facts()
    facts.are_all_asked_for = wants_one
    return facts, symbol_size(facts, facts.new_symbol("x", now, least))


def length(size: Any, start: int) -> Any:
    first, end = slice_range(size, start, None)
    assert first >= 0 and end == size and end - first >= 1
    return end - first


@pytest.mark.parametrize("wants_one", [False, True])
@pytest.mark.parametrize(("now", "least", "count"), [(7, 2, 1), (7, 2, 2), (7, 5, 5), (3, 3, 3)])
def test_a_range_that_says_enough(wants_one: bool, now: int, least: int, count: int) -> None:
    facts, size = sized(now, wants_one=wants_one, least=least)
    assert type(length(size, -count)) is int
    assert not facts.guards() and facts.range_guards()[0][1][0] == least


def test_as_many_as_are_asked_for_are_a_number() -> None:
    facts, size = sized(7)
    assert type(length(size, -3)) is int
    assert not facts.guards() and facts.range_guards()[0][1][0] == 3


@pytest.mark.parametrize(("now", "wants_one"), [(7, True), (2, True), (2, False)])
def test_a_length_that_is_left_open(now: int, wants_one: bool) -> None:
    facts, size = sized(now, wants_one=wants_one)
    found = length(size, -3)
    assert type(found) is not int and found.hint == min(now, 3)
    assert not facts.guards() and facts.range_guards()[0][1][0] == 2


def test_marked_dimensions_are_left_open() -> None:
    facts = Facts()
    size = symbol_size(facts, facts.new_symbol("x", 7, strict=True))
    assert type(length(size, -3)) is not int
