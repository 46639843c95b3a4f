"""The share of a long sweep that a run takes: another one with each day's commits, so that all of
it runs in turn, and a commit's run is the same whenever it is repeated.

`BRAZE_DAY` is the number of the day. It is set by the process that starts a run (`conftest.py`), so
that all of a run's processes take the same share. Without it, or where it is "all", as under
`make nightly`, nothing is left out.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, TypeVar

import pytest

VARIABLE = "BRAZE_DAY"
_T = TypeVar("_T")


def choose_day() -> str:
    """The day of a run and of all processes that it starts: the variable's, or else that of the
    last commit; today outside of a checkout."""
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = str(_day_of_commit().toordinal())
    return os.environ[VARIABLE]


def _day_of_commit() -> date:
    command = ["git", "log", "-1", "--format=%cd", "--date=format:%Y-%m-%d"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        return date.fromisoformat(done.stdout.strip())
    except (OSError, subprocess.CalledProcessError, ValueError):
        return date.today()


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
