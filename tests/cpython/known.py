"""The list of test methods that do not run whole, one file a Python version; it may only shrink.

A list says which parts of the methods it is of, where a run of all took too long; only those are
held to it.

test_set.TestSet.test_pickling breaks unseen-callable: a callable that cannot be ...
test_iter.TestCase.test_countOf fails AssertionError: 0 != 1
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.cpython.worker import MethodReport, is_in_part

FILE = Path(__file__).with_name("known_{}.{}.txt".format(*sys.version_info))
_RELEASE = "# Of CPython {}.{}.{}."
_TOTAL = "# {} methods pass plainly."
_PARTS = "# Parts {} of {}."
# Into how many parts the methods are split, to be listed.
SPLIT = 8
HEADER = """\
# Methods of CPython's own tests that pass plainly but, compiled, fail or break the graph, with the
# first reason. A fixed one must be taken off. Written by `python -m tests.cpython.run --write`.
"""
_LENGTH = 150
_FOLDERS = re.compile(r"(?<=\s)/\S*/")


def verdict(report: MethodReport) -> str:
    """ "whole", "breaks" (it passes, in several graphs or none), "fails", or "slow" (it was not
    over in time, which depends on the machine); "" if it does not count."""
    if report.plain != "pass":
        return ""
    if report.outcome == "timeout":
        return "slow"
    if report.outcome != "pass":
        return "fails"
    return "whole" if report.whole else "breaks"


def reason(report: MethodReport) -> str:
    """Why a method does not run whole, in a line that says the same in each run."""
    faults = re.findall("stage '.*", report.detail)
    if report.outcome != "pass":
        text = faults[-1] if faults else report.outcome
    elif report.breaks:
        code, detail, _ = report.breaks[0]
        text = f"{code}: {detail}"
    elif report.raised:
        text = report.raised[0].rpartition("the program ")[2]
    else:
        text = "no graph"
    line = _FOLDERS.sub("", " ".join(text.split()))
    return line.partition(" at 0x")[0][:_LENGTH]


def lists() -> list[Path]:
    """The lists of all versions of Python."""
    return sorted(FILE.parent.glob("known_*.txt"))


def known(file: Path = FILE) -> dict[str, str]:
    """Method -> "fails", "breaks" or "slow", as listed."""
    entries = {}
    for line in file.read_text().splitlines() if file.exists() else ():
        if line and not line.startswith("#"):
            method, how, _ = line.split(" ", 2)
            entries[method] = how
    return entries


def total(file: Path = FILE) -> int:
    """How many methods pass plainly, and so can be listed."""
    return int(re.findall(_TOTAL.format("(\\d+)"), file.read_text())[0])


def parts(file: Path = FILE) -> frozenset[int]:
    """Of which of the SPLIT parts the list is."""
    found = re.findall(_PARTS.format("([\\d ]+)", SPLIT), file.read_text())
    return frozenset(map(int, found[0].split())) if found else frozenset()


def is_listed_part(method: str, listed: frozenset[int]) -> bool:
    """Whether a method is in one of the parts that a list is of."""
    return any(is_in_part(method, part, SPLIT) for part in listed)


def write(reports: Sequence[MethodReport], listed: Iterable[int] = range(SPLIT)) -> None:
    """Make the list anew from a run of some parts."""
    lines = [
        f"{report.id} {verdict(report)} {reason(report)}\n"
        for report in sorted(reports, key=lambda report: report.id)
        if verdict(report) in ("fails", "breaks", "slow")
    ]
    count = sum(bool(verdict(report)) for report in reports)
    parts_line = _PARTS.format(" ".join(map(str, sorted(listed))), SPLIT)
    head = f"{_RELEASE.format(*sys.version_info)}\n{parts_line}\n{_TOTAL.format(count)}\n"
    FILE.write_text(head + HEADER + "".join(lines))


def is_listed_release() -> bool:
    """Whether the list was made with the running release of Python, whose tests it names."""
    return FILE.exists() and FILE.read_text().startswith(_RELEASE.format(*sys.version_info))


def differences(reports: Iterable[MethodReport]) -> list[str]:
    """Methods that are worse than listed, or better."""
    listed, swept = known(), parts()
    found = []
    for report in reports:
        if not is_listed_part(report.id, swept):
            continue
        now, before = verdict(report), listed.get(report.id, "whole")
        if not now or now == before or "slow" in (now, before):
            continue
        worse = now == "fails" or before == "whole"
        advice = f"new: {reason(report)}" if worse else "better: take it off the list"
        found.append(f"{report.id} was listed as {before!r} and now {now!r}: {advice}")
    return found
