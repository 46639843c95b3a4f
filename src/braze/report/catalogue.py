"""The catalogue of graph breaks as a page: one section a code, generated from capture's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from braze.trace import EAGER_CODES

_HEAD = """\
# Graph breaks

Where a program does something that a graph cannot hold, Braze ends the graph, runs that one
instruction natively, and captures again from the next one. Results are those of eager; the price
is what could not be fused across the break. `fullgraph=True` makes a break an error.

`BRAZE_LOGS=graph_breaks`, `braze.set_logs("graph_breaks")` and `braze.explain(f)(*args)` show each
break with the line of your program that caused it and one of the codes below.

Where nothing can be captured, the call, or the rest of it, is left to eager: see
[below](#calls-left-to-eager).

This page is generated from the table of break reasons by `make docs`.
"""

_EAGER = """\
## Calls left to eager

Each is counted in `braze.status()`, logged (`eager_calls`), shown by `explain`, warned of once
where each such call will be left, and an error under `fullgraph=True`, but for `single-use` and
`run-only`; what the program itself raises comes out as it is. Beside the codes above:

| code | |
|---|---|
"""


class Reason(Protocol):
    """An entry of the table: a message with a place for `{detail}`, an example and one fix."""

    @property
    def title(self) -> str:
        """The kind of thing that stopped the graph."""

    @property
    def prospect(self) -> str:
        """Whether a graph could ever hold it."""

    @property
    def template(self) -> str:
        """The message, `{detail}` in it."""

    @property
    def hint(self) -> str:
        """What to do."""

    @property
    def example(self) -> str:
        """A program that meets it, or "" where none is known."""


def render_catalogue(entries: Mapping[str, Reason]) -> str:
    """The page as Markdown, codes in the order of the table."""
    index = "\n".join(f"- [`{code}`](#{code})" for code in entries)
    sections = [_section(code, reason) for code, reason in entries.items()]
    left = "".join(f"| `{code}` | {text} |\n" for code, text in EAGER_CODES.items())
    return "\n".join([_HEAD, index, "", *sections, _EAGER + left])


def _section(code: str, reason: Reason) -> str:
    message = reason.template.replace("{detail}", "...")
    example = f"```python\n{reason.example}\n```\n\n" if reason.example else ""
    return (
        f"## {code}\n\n"
        f"**{reason.title}.** {_sentence(reason.prospect)}\n\n"
        f"**Message**: {_sentence(message)}\n\n"
        f"{example}"
        f"**What to do**: {_sentence(reason.hint)}\n"
    )


def _sentence(text: str) -> str:
    ended = text if text.endswith(".") else f"{text}."
    return ended[:1].upper() + ended[1:]
