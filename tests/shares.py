"""The share of a long sweep that a run takes: another one each day, so that all of it runs in turn.

`BRAZE_DAY` is the number of the day. It is set by the process that starts a run (`conftest.py`), so
that all of a run's processes take the same share, and one run can be repeated another day. Without
it, or where it is "all", as under `make nightly`, nothing is left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any, TypeVar

import pytest

VARIABLE = "BRAZE_DAY"
_T = TypeVar("_T")


def choose_day() -> str:
    """The day of a run and of all processes that it starts: the variable's, or else today's."""
    return os.environ.setdefault(VARIABLE, str(date.today().toordinal()))


def _day() -> int | None:
    """The number of the day; None: all of each sweep is due. Raises ValueError for other text."""
    text = os.environ.get(VARIABLE, "all")
    return None if text == "all" else int(text)


def todays(items: Iterable[_T], count: int, first: int = 0) -> list[_T]:
    """Every `count`-th of the items, from another one on each day; all where no day is chosen.
    first: moves where they begin, for sweeps that take different ones on the same day."""
    found, day = list(items), _day()
    return found if day is None else found[(day + first) % count :: count]


def due_today(items: Sequence[Any], count: int) -> list[Any]:
    """Parameters of a test; those that are not today's are marked `nightly`. items: parameters, or
    what `pytest.param` made of them."""
    due = set(todays(range(len(items)), count))
    return [item if n in due else _nightly(item) for n, item in enumerate(items)]


def _nightly(item: Any) -> Any:
    if isinstance(item, type(pytest.param())):
        return pytest.param(*item.values, id=item.id, marks=[*item.marks, pytest.mark.nightly])
    return pytest.param(item, marks=pytest.mark.nightly)
