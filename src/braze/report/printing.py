"""How sections of a report are printed by `rich`: on a terminal, as text, and as HTML.

Loaded when one is printed: `rich` takes more memory than all else that importing Braze brings from
others, and a program that trains has no use for it.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.text import Text

if TYPE_CHECKING:
    from braze.report.printed_report import PrintedReport

TEXT_WIDTH = 100
_HTML = '<pre style="line-height: normal; overflow-x: auto">{code}</pre>'


def show(report: PrintedReport) -> None:
    """Print to the terminal, in colour where it has colours."""
    Console().print(report)


def as_group(sections: Iterable[RenderableType]) -> RenderableType:
    """What `rich` prints."""
    return Group(*sections)


def as_text(sections: Iterable[RenderableType]) -> str:
    """Sections as lines of text, without colours."""
    buffer = io.StringIO()
    console = Console(file=buffer, width=TEXT_WIDTH, color_system=None)
    _print(console, sections)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def as_html(sections: Iterable[RenderableType]) -> str:
    """Sections as a preformatted element, with their colours."""
    console = Console(file=io.StringIO(), width=TEXT_WIDTH, record=True, force_jupyter=False)
    _print(console, sections)
    return console.export_html(code_format=_HTML, inline_styles=True)


def _print(console: Console, sections: Iterable[RenderableType]) -> None:
    for section in sections:
        console.print(section, soft_wrap=isinstance(section, Text))  # messages stay whole
