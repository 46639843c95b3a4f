"""Shows the project's docstrings as lists: paragraphs of `name: what it is` lines.

    model: function, method, module.          - **`model`**: function, method, module.
    mode: "default" or                   ->   - **`mode`**: "default" or
        "reduce-overhead".                        "reduce-overhead".

A paragraph is such a list where its first line begins with names that the object has, as parameters
or attributes. Others stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ITEM = re.compile(r"^(\w+(?:, \w+)*): (.*)$")


def as_lists(text: str, names: set[str]) -> str:
    """The docstring with its lists as Markdown."""
    return "\n\n".join(_paragraph(part, names) for part in text.split("\n\n"))


def _paragraph(text: str, names: set[str]) -> str:
    first = _ITEM.match(text.partition("\n")[0])
    if first is None or not {*first[1].split(", ")} <= names:
        return text
    lines: list[str] = []
    for line in text.splitlines():
        item = _ITEM.match(line)
        if item is None:
            lines.append(f"    {line.strip()}")
        else:
            shown = ", ".join(f"`{name}`" for name in item[1].split(", "))
            lines.append(f"- **{shown}**: {item[2]}")
    return "\n".join(lines)


class ListsOfNames(griffe.Extension):
    """Rewrites docstrings when they are collected."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Parameters are the names of a function."""
        if func.docstring:
            names = {parameter.name for parameter in func.parameters}
            func.docstring.value = as_lists(func.docstring.value, names)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Attributes and methods are the names of a class."""
        if cls.docstring:
            cls.docstring.value = as_lists(cls.docstring.value, {*cls.members})
