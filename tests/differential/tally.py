"""The tally of shape programs, from whichever processes they ran in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

TALLY = "shape programs"


def tally_line(reports: Iterable[Any]) -> str:
    """What the tests noted under TALLY, summed up; "" where none did. reports: pytest's."""
    noted = [
        value
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == TALLY
    ]
    if not noted:
        return ""
    programs, wrong, once_more = map(sum, zip(*noted))
    return (
        f"{programs} shape programs, five sizes each: {programs - wrong} equal to eager, "
        f"{wrong} wrong, {once_more} compiled once more than their kinds of call"
    )
