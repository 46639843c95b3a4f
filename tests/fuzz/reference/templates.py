"""Idioms: named templates of program text, with choices, and the scope that their holes are filled
from.

An idiom begins with a line `== name` and is three sections of text, separated by lines `--`: what
a module defines, what the function `step` does, and the worlds, one statement a line: what may be
changed between two calls. A name `$NAME` makes it a text that others of the file may include. A
line that ends with `|` goes on in the next.

| in the text | |
|---|---|
| `§` | the instance's number: each use of an idiom has names of its own |
| `«a|b»` | one of these; nested choices are drawn from within |
| `«op:=a|b»`, `«op»` | a choice, and the same one later |
| `$T`, `$N`, `$I`, `$F` | a tensor or a number in scope; a small int or float literal |
| `$BODY` | further idioms, in the same scope, indented as the line is |
| `$BRANCH` | the same, where they may not run: what they assign is not used behind |
| `$INNER`, `$R` | further idioms of a nested function; the tensor they end with |

What `step` assigns to names that start with `t`, `k` and `o` and end with the instance's number is
a tensor of the shape of `x`, a number, and any other result.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import final

_CHOICE = re.compile(r"«([^«»]*)»")
_NAMED = re.compile(r"\s*([a-z]\w*):=(.*)", re.DOTALL)


@final
@dataclass(frozen=True, slots=True)
class Idiom:
    """A named template.

    group: the file of the vocabulary that it is of. setup, step, worlds: its sections, as they
    are written.
    """

    name: str
    group: str
    setup: str
    step: str
    worlds: tuple[str, ...]

    @property
    def nests(self) -> bool:
        """Whether other idioms go into its step."""
        return any(hole in self.step for hole in ("$BODY", "$BRANCH", "$INNER"))


@final
@dataclass(frozen=True, slots=True)
class Piece:
    """An idiom whose choices are drawn: texts whose holes `$...` are still open."""

    number: int
    idiom: Idiom
    setup: str
    step: str
    worlds: tuple[str, ...]


@final
@dataclass(slots=True)
class Scope:
    """The names that a statement of `step` may use.

    tensors: of x's shape. numbers: ints, floats and bools. others: results of any type.
    """

    tensors: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def inner(self) -> Scope:
        """The scope of a nested function: it sees what is outside."""
        return Scope(list(self.tensors), list(self.numbers))


def parse_idioms(group: str, text: str) -> tuple[Idiom, ...]:
    """The idioms of a text of the vocabulary."""
    joined = re.sub(r"\|\n *", "|", text)
    blocks = [block.partition("\n") for block in re.split(r"^== ", joined, flags=re.M)[1:]]
    included = {name: body.strip("\n") for name, _, body in blocks if name.startswith("$")}
    for name, body in included.items():
        blocks = [(one, end, rest.replace(name, body)) for one, end, rest in blocks]
    return tuple(_parsed(group, [(one, rest) for one, _, rest in blocks if one not in included]))


def _parsed(group: str, blocks: list[tuple[str, str]]) -> Iterator[Idiom]:
    for name, rest in blocks:
        parts = re.split(r"^--$", rest, flags=re.MULTILINE)
        if len(parts) > 3:
            raise ValueError(f"{group}: {name} has {len(parts)} sections")
        setup, step, worlds = (part.strip("\n") for part in [*parts, "", ""][:3])
        lines = tuple([line for line in worlds.splitlines() if line.strip()])
        yield Idiom(name.strip(), group, setup, step, lines)


def draw(idiom: Idiom, number: int, rng: random.Random) -> Piece:
    """A piece of an idiom: its choices are drawn, and the names are its own."""
    chosen: dict[str, str] = {}

    def expand(text: str) -> str:
        while (match := _CHOICE.search(text)) is not None:
            text = text[: match.start()] + _chosen(match[1], chosen, rng) + text[match.end() :]
        return text.replace("§", str(number))

    setup, step = expand(idiom.setup), expand(idiom.step)  # worlds name what these have chosen
    worlds = tuple(map(expand, ("\n".join(idiom.worlds)).splitlines()))
    return Piece(number, idiom, setup, step, worlds)


def _chosen(options: str, chosen: dict[str, str], rng: random.Random) -> str:
    named = _NAMED.match(options)
    if named is not None:
        chosen[named[1]] = rng.choice(named[2].split("|"))
        return chosen[named[1]]
    if options in chosen:
        return chosen[options]
    return rng.choice(options.split("|"))


def fill(text: str, scope: Scope, rng: random.Random) -> str:
    """The text with its holes filled from a scope; each is drawn by itself."""

    def value(match: re.Match[str]) -> str:
        kind = match[1]
        if kind == "T":
            return rng.choice(scope.tensors[-3:] if rng.random() < 0.7 else scope.tensors)
        if kind == "N":
            return rng.choice(scope.numbers) if scope.numbers else str(rng.randint(0, 3))
        if kind == "F":
            return rng.choice(("0.5", "1.5", "2.0", "-1.0", "0.25"))
        return str(rng.choice((0, 1, 2, 2, 3, 3, 5)))

    return re.sub(r"\$([TNIF])\b", value, text)


def assigned(text: str, number: int) -> list[str]:
    """The names of results that the lines of a piece assign at their own level, in order."""
    found = re.findall(
        rf"^([tko]{number}[a-z]?)\b(?:, [tko]{number}[a-z]?)* = ", text, re.MULTILINE
    )
    more = re.findall(rf"^[tko]{number}[a-z]?, ([tko]{number}[a-z]?) = ", text, re.MULTILINE)
    return list(dict.fromkeys([*found, *more]))
