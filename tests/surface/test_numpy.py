"""A part of the sweep over NumPy; `python -m tests.surface.numpy_functions` asks all of it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.surface.numpy_functions import (
    Case,
    arguments,
    cases,
    lines,
    outcome,
    part_of,
    program,
    sweep,
)

PARTS = 1200
PAGE = Path(__file__).parents[2] / "docs" / "numpy.md"


@pytest.mark.parametrize("number", range(4))
def test_numpy_s_functions_give_what_numpy_gives(number: int) -> None:
    tally = sweep(part_of(cases(), number, PARTS))
    assert not tally.differences
    assert tally.asked > 35
    assert tally.whole > tally.asked // 10


def test_lines_are_of_every_function() -> None:
    found = {line.partition("(")[0] for line in lines()}
    assert {"r = np.sum", "r = np.linalg.norm", "r = np.fft.rfft", "r = a.std"} <= found
    assert len(found) > 500


def _named_in_the_graph() -> list[str]:
    """NumPy's functions that the page says are in graphs."""
    (text,) = re.findall(r"\*\*In the graph:\*\*(.*?)\n\n", PAGE.read_text(), re.DOTALL)
    return [name for name in re.findall(r"`(\w+)`", text) if callable(getattr(np, name, None))]


@pytest.mark.parametrize("name", _named_in_the_graph())
def test_what_the_page_names_is_in_one_graph(name: str) -> None:
    """A sweep that takes a break for an answer does not see that a function always breaks."""
    for line in lines():
        if line.startswith(f"r = np.{name}("):
            run, names = program(line)
            made = arguments("f8")
            is_taken = outcome(run, {one: made[one] for one in names})[1] is None
            if is_taken and sweep([Case(line, "f8")]).whole:
                return
    pytest.fail(f"no line of numpy.{name} is one graph")
