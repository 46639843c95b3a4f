"""The parts of prelude.cpp that a unit uses: all of it costs a compiler as much as a small kernel.

A part is a paragraph of the file. A unit that names `bz_exp` gets each part that defines a function
of that name, so that overloads are chosen as among all of them, and the parts which those use.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from typing import final

from braze.frozen import frozen


def whole_prelude() -> str:
    """All of prelude.cpp."""
    return importlib.resources.files(__package__).joinpath("prelude.cpp").read_text()


def prelude_for(text: str) -> str:
    """The parts of prelude.cpp that a text uses, in their order, the types first. Equal texts have
    equal preludes: the hash of a unit's text stays the name of its build."""
    parts = _parts()
    known = _definitions()
    used = {0}
    pending = _names_in(text) & known.keys()
    seen = set(pending)
    while pending:
        for number in known[pending.pop()] - used:
            used.add(number)
            found = parts[number].names & known.keys()
            pending |= found - seen
            seen |= found
    return "\n".join([parts[number].text for number in sorted(used)])


# --- private ---------------------------------------------------------------------------------

_NAME = re.compile(r"\b[A-Za-z_]\w*")
_FUNCTION = re.compile(r"^(?:BZ_INLINE|template|__attribute__).*?\b(bz_\w+)(?:<[^>]*>)?\(", re.M)
_POINTER = re.compile(r"^typedef .*\(\*(bz_\w+)\)", re.M)
# Lists in macros: BZ_VECTOR1(log) declares log and logf, of which BZ_CALL1(log) makes bz_log.
_DECLARED = re.compile(r"\bBZ_(?:SCALAR|VECTOR)[12]\((\w+)")
_MADE = re.compile(r"\bBZ_(?:CALL|BUILTIN)[12]\((\w+)")


@final
@frozen
class _Part:
    """A paragraph of the file. names: all identifiers in it. defined: the functions and types that
    it defines or declares."""

    text: str
    names: frozenset[str]
    defined: frozenset[str]


def _part(text: str) -> _Part:
    declared = _DECLARED.findall(text)
    defined = {*_FUNCTION.findall(text), *_POINTER.findall(text), *declared}
    defined |= {f"{name}f" for name in declared} | {f"bz_{name}" for name in _MADE.findall(text)}
    return _Part(text, frozenset(_names_in(text)), frozenset(defined))


def _names_in(text: str) -> set[str]:
    return set(_NAME.findall(text))


@functools.cache
def _parts() -> tuple[_Part, ...]:
    return tuple([_part(text + "\n") for text in whole_prelude().rstrip("\n").split("\n\n")])


@functools.cache
def _definitions() -> dict[str, set[int]]:
    """The numbers of the parts that define each name."""
    found: dict[str, set[int]] = {}
    for number, part in enumerate(_parts()):
        for name in part.defined:
            found.setdefault(name, set()).add(number)
    return found
