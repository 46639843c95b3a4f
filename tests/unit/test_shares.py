"""The share of a long sweep that a run takes."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from tests.shares import VARIABLE, choose_day, due_today, todays


def test_days_in_turn_take_all(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    for day in range(739_000, 739_003):
        monkeypatch.setenv(VARIABLE, str(day))
        assert todays("abcdefgh", 3) == todays("abcdefgh", 3)
        assert todays("abcdefgh", 3, first=1) != todays("abcdefgh", 3)
        taken += todays("abcdefgh", 3)
    assert sorted(taken) == list("abcdefgh")


@pytest.mark.parametrize("text", ["all", None])
def test_without_a_day_nothing_is_left_out(
    text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE)
    if text:
        monkeypatch.setenv(VARIABLE, text)
    assert todays(range(5), 2) == [*range(5)]
    assert due_today(range(5), 2) == [*range(5)]


def test_the_rest_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "6")
    kept = pytest.param(2, id="two", marks=pytest.mark.slow)
    found = due_today([0, 1, kept, kept], 2)
    assert found[0] == 0 and found[2] is kept
    assert [mark.name for mark in found[1].marks] == ["nightly"]
    assert (found[3].id, [mark.name for mark in found[3].marks]) == ("two", ["slow", "nightly"])


def test_a_run_says_its_day() -> None:
    """Its own, or that of the run that starts it."""
    command = [sys.executable, "-m", "pytest", "--collect-only", str(Path(__file__)), "-v"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert f"{VARIABLE}={choose_day()}" in said


def test_the_day_is_that_of_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["git", "log", "-1", "--format=%cs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("this is no checkout")
    monkeypatch.setenv(VARIABLE, "0")  # put back behind the test
    monkeypatch.delenv(VARIABLE)
    assert date.fromordinal(int(choose_day())) == date.fromisoformat(done.stdout.strip())
