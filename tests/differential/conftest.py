"""What is printed at the end of a run of these tests."""

from __future__ import annotations

import itertools
from typing import Any

from tests.differential.tally import tally_line


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The tally of shape programs, from all processes."""
    line = tally_line(itertools.chain.from_iterable(terminalreporter.stats.values()))
    if line:
        terminalreporter.write_line(line)
