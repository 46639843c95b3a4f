"""The glossary: the classes that it names are those of the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.architecture.tree import source_files

_GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
_CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z]*)+)`")


def test_classes_in_the_first_column_exist() -> None:
    rows = [line.split("|")[1] for line in _GLOSSARY.read_text().splitlines() if line[:2] == "| "]
    named = {name for row in rows for name in _CLASS.findall(row)}
    classes = {
        node.name
        for file in source_files()
        for node in file.nodes()
        if isinstance(node, ast.ClassDef)
    }
    assert len(named) >= 5 and named <= classes, named - classes
