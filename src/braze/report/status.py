"""What `braze.status()` returns: a row for each compiled callable that is alive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, final

from braze.compile_records import CallableStatus
from braze.frozen import frozen
from braze.report.printed_report import PrintedReport


@final
@frozen
class Status(PrintedReport):
    """What became of the calls of everything that is compiled. It prints as a table.

    rows: oldest first; iterating, `len`, and `status[number]` or `status["name"]` go by them.
    packed_bytes: of weights that are kept in the layout of the CPU's convolutions.
    frozen_bytes: that are held for graphs compiled with `freeze`.
    """

    SECTIONS: ClassVar[str] = "braze.report.status_tables"

    rows: tuple[CallableStatus, ...]
    packed_bytes: int = 0
    frozen_bytes: int = 0

    def __iter__(self) -> Iterator[CallableStatus]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: int | str) -> CallableStatus:
        """The row of that number, or the last one of that name. Raises IndexError, KeyError."""
        if isinstance(which, int):
            return self.rows[which]
        named = [row for row in self.rows if row.name == which]
        if not named:
            raise KeyError(which)
        return named[-1]

    @property
    def calls(self) -> int:
        return sum(row.calls for row in self.rows)

    @property
    def calls_left(self) -> int:
        """Whole calls that ran eagerly, of all rows."""
        return sum(row.calls_left for row in self.rows)
