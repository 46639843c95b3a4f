"""What these tests spare, and what is printed at the end of a run of them."""

from __future__ import annotations

import itertools
from typing import Any

from torch.testing._internal import common_utils

from tests.differential.tally import tally_line

# Each draw of samples looks for a unittest.TestCase on the stack, and reads the source of all that
# is on it: several times what the samples take. There is none here.
common_utils.extract_test_fn = lambda: None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The tally of shape programs, from all processes."""
    line = tally_line(itertools.chain.from_iterable(terminalreporter.stats.values()))
    if line:
        terminalreporter.write_line(line)
