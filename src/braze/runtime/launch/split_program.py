"""A long launch program as several functions, each compiled by itself.

    def call(inputs):                    def part0(held, inputs):
        x0, x1, = inputs                     x0, x1, = inputs
        t0 = op0(x0)            ->           t0 = op0(x0)
        t1 = op1(t0, x1)                     held += (x1, t0)
        return [t1]                      def part1(held):
                                             x1, t0, = held
                                             held.clear()
                                             t1 = op1(t0, x1)
                                             return [t1]
                                         def call(inputs, part0=part0, part1=part1): ...

Python's compiler takes 5 KiB a line of one function: as much as a large graph's values. A part lets
go of what no later one reads; what they read is in `held` only while no part runs, so that `del`
frees a tensor as it does in one function.

What fails behind the line COMMITS has written, or acted, already: it is PartlyRun.

    t0 = op0(x0)              t0 = op0(x0)
    COMMITS            ->     try:
    x1.copy_(t0)                  x1.copy_(t0)
                              except Exception as fault: raise after_effects(fault) from None

Where lines bind PENDING, it names what is written then; to begin with, nothing is.

Expected of the lines: the first takes the inputs, and the second is in the same part; each is one
simple statement, or `if ...: ` and one; names are bound by assignments of names, and by nothing
else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence

LONGEST_PART = 500  # lines
COMMITS = "# from here on the program cannot be run again"
PENDING = "pending"

_NAME = re.compile(r"[A-Za-z_]\w*")
_BOUND = re.compile(r"((?:[A-Za-z_]\w*, )*[A-Za-z_]\w*),? = ")


def in_parts(lines: Sequence[str], longest: int = LONGEST_PART) -> tuple[str, ...]:
    """The functions that `call(inputs)` consists of, itself last, with the others as
    defaults of its parameters. The last line returns."""
    commits = lines.index(COMMITS) if COMMITS in lines else len(lines)
    lines = [line for line in lines if line != COMMITS]
    if len(lines) <= longest:
        return (_function("call(inputs)", lines, commits),)
    pieces = [lines[start : start + longest] for start in range(0, len(lines), longest)]
    later: list[set[str]] = [set()]
    for piece in reversed(pieces[1:]):
        later.append(later[-1] | names_in(piece))
    made, calls, taken = [], [], ""
    bound: dict[str, None] = {}
    for number, piece in enumerate(pieces):
        wanted = later.pop()
        _bind(piece, bound)
        carried = "".join(f"{name}, " for name in bound if name in wanted)
        begin = [f"{taken}= held", "held.clear()"] if taken else []
        end = [f"held += ({carried})"] if carried else []
        arguments = "held" if number else "held, inputs"
        late = max(commits - number * longest, 0) + len(begin)
        made.append(_function(f"part{number}({arguments})", [*begin, *piece, *end], late))
        calls.append(f"part{number}({arguments})")
        taken = carried
    calls[-1] = f"return {calls[-1]}"
    parts = "".join(f", part{number}=part{number}" for number in range(len(made)))
    return (*made, _function(f"call(inputs{parts})", ["held = []", *calls]))


def _function(signature: str, lines: Sequence[str], commits: int = sys.maxsize) -> str:
    """commits: the number of the first line whose failure is PartlyRun."""
    early, late = lines[:commits], lines[commits:]
    told = ""
    if PENDING in names_in(late):
        told, early = f", {PENDING}", [f"{PENDING} = ()", *early]
    text = [f"def {signature}:", *(f"    {line}" for line in early)]
    if late:
        text += ["    try:", *(f"        {line}" for line in late)]
        text += [f"    except Exception as fault: raise after_effects(fault{told}) from None"]
    if told:
        text += ["    except BaseException:", f"        make_writes({PENDING})", "        raise"]
    return "\n".join([*text, ""])


def names_in(lines: Iterable[str]) -> set[str]:
    """All names that lines of Python speak of, attributes and words of the language among them."""
    return {name for line in lines for name in _NAME.findall(line)}


def _bind(lines: Iterable[str], bound: dict[str, None]) -> None:
    """Add the names that the lines bind, without those that they delete."""
    for line in lines:
        if line.startswith("del "):
            for name in _NAME.findall(line)[1:]:
                bound.pop(name, None)
        elif found := _BOUND.match(line):
            bound |= dict.fromkeys(_NAME.findall(found[1]))
