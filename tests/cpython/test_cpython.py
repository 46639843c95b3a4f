"""CPython's own tests, each method compiled between two tensor operations; what does not run whole
is listed, and the list may only shrink.

The methods are split into parts. `make test` runs some of them, other ones on each version of
Python; `make cpython` runs all. The tests differ from release to release: on the one that a list is
of, each method of the parts that it lists is held to it; elsewhere the shares are.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cpython.known import (
    SPLIT,
    differences,
    is_listed_release,
    known,
    lists,
    parts,
    total,
    verdict,
)
from tests.cpython.modules import MODULES
from tests.cpython.run import run_modules
from tests.cpython.worker import module_exists

PARTS = 16
# 1: every part; n: every n-th.
SHARE = int(os.environ.get("BRAZE_CPYTHON_SHARE", "16"))
CHOSEN = range(sys.version_info.minor % SHARE, PARTS, SHARE)

# Of the methods that pass plainly, at least so many pass compiled, and so many in one graph.
PASS = 0.98
WHOLE = 0.70


@pytest.mark.skipif(not module_exists("test_list"), reason="Python came without its tests")
@pytest.mark.parametrize("part", CHOSEN)
def test_part(part: int) -> None:
    reports = run_modules(MODULES, part=f"{part}/{PARTS}")
    assert all(report.bytecodes for report in reports if report.whole)
    if is_listed_release() and part % SPLIT in parts():
        assert not differences(reports), "\n".join(differences(reports))
        return
    counts = Counter(map(verdict, reports))
    ran = counts["whole"] + counts["breaks"] + counts["fails"] + counts["slow"]
    assert counts["fails"] <= max(1, (1 - PASS) * ran), counts
    assert counts["whole"] >= 0.9 * WHOLE * ran, counts


@pytest.mark.parametrize("file", lists(), ids=lambda file: file.stem)
def test_few_are_listed(file: Path) -> None:
    assert parts(file)
    counts = Counter(known(file).values())
    assert counts["fails"] + counts["slow"] <= (1 - PASS) * total(file), counts
    assert sum(counts.values()) <= (1 - WHOLE) * total(file), counts


def test_every_version_has_a_list() -> None:
    names = [file.stem for file in lists()]
    assert names == ["known_3.11", "known_3.12", "known_3.13", "known_3.14", "known_3.15"]
