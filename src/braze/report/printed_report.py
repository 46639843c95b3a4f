"""What a report prints as: tables by `rich` on a terminal and in a notebook, text elsewhere."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar


class PrintedReport:
    """A report that prints.

    SECTIONS: the module whose `sections` makes what `rich` prints of it. It is imported late: what
    prints takes memory that a program which trains has no use for.
    """

    __slots__ = ()

    SECTIONS: ClassVar[str]

    def show(self) -> None:
        """Print to the terminal, in colour where it has colours."""
        _printing().show(self)

    def __rich__(self) -> Any:
        return _printing().as_group(self._sections())

    def __str__(self) -> str:
        return str(_printing().as_text(self._sections()))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return str(_printing().as_html(self._sections()))

    def _sections(self) -> Any:
        return importlib.import_module(self.SECTIONS).sections(self)


def _printing() -> Any:
    return importlib.import_module("braze.report.printing")
