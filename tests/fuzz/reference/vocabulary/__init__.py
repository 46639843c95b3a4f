"""The vocabulary: idioms of Python's references (language and library) and of PyTorch's.

Each text file is a group of idioms, in the notation that `tests.fuzz.reference.templates` reads.
"""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.reference.templates import Idiom, parse_idioms

_FILES = sorted(Path(__file__).parent.glob("*.txt"))
_ALL = tuple([one for file in _FILES for one in parse_idioms(file.stem, file.read_text())])
OPERATORS: tuple[Idiom, ...] = tuple([one for one in _ALL if one.group == "operators"])
IDIOMS: tuple[Idiom, ...] = tuple([one for one in _ALL if one.group != "operators"])
