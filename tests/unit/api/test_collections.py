"""Objects that a compile makes do not bring a full garbage collection upon a later call."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from braze.compat.torch.thread_state import run_isolated

MANY = 30_000


@pytest.fixture(autouse=True)
def nothing_frozen() -> Iterator[None]:
    """The suite freezes what it begins with."""
    gc.unfreeze()
    gc.collect()
    yield
    gc.freeze()


def is_old(thing: object) -> bool:
    return any(thing is other for other in gc.get_objects(generation=2))


def make(count: int) -> list[list[Any]]:
    return [[] for _ in range(count)]


def test_many_objects_are_old_at_once() -> None:
    made = run_isolated(lambda: make(MANY))
    assert is_old(made) and is_old(made[0]) and is_old(made[-1])
    assert gc.get_count()[2] == 0


def test_few_stay_young() -> None:
    made = run_isolated(lambda: make(100))
    assert not is_old(made)


def test_garbage_goes_at_once() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.me = self

    def run() -> tuple[weakref.ref[Cycle], Any]:
        return weakref.ref(Cycle()), make(MANY)

    gone, _kept = run_isolated(run)
    assert gone() is None


def test_what_the_program_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    assert frozen > 1_000
    made = run_isolated(lambda: make(MANY))
    assert gc.get_freeze_count() == frozen and made


def test_a_collector_that_is_off_is_left_alone() -> None:
    gc.disable()
    try:
        made = run_isolated(lambda: make(MANY))
        assert not gc.isenabled() and not is_old(made)
    finally:
        gc.enable()
