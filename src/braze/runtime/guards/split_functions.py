"""A long check of guards as several functions, each compiled by itself.

    def check(frame):                        def check0(L, frame, held):
        try:                                     t0 = L['x']
            L = frame.locals                     if not (...): return False
            t0 = L['x']                          held += (t0, )
            if not (...): return None            return True
            t1 = t0.shape           ->       def check1(L, frame, held):
            ...                                  t0, = held
            return [t0]                          ...
        except READ_FAILURES:                def check(frame, check0=check0, check1=check1):
            return None                          held = []
                                                 if not check0(L, frame, held): return None
                                                 ...
                                                 return [t0]

As with launch programs (`program_parts.py`): Python's compiler takes 5 KiB a line of one function,
28 MiB for the guards of DenseNet-121's training step.

Expected of the lines: those of a loop's body are indented, all others bind names by `name = ` or
return `failed`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from braze.runtime.launch.split_program import names_in

LONGEST_CHECK = 1000  # lines

_BOUND = re.compile(r"([A-Za-z_]\w*) = ")


def check_in_parts(
    lines: Sequence[str], value: str, failed: str, longest: int = LONGEST_CHECK
) -> tuple[tuple[str, ...], list[str]]:
    """The texts of the functions that come first, and the lines of the last, which calls them and
    gives `value`."""
    pieces = _cut(lines, longest)
    later = names_in([value])
    wanted: list[set[str]] = []
    for piece in reversed(pieces):
        wanted.append(later)
        later = later | names_in(piece)
    functions: list[str] = []
    bound: dict[str, None] = {}
    taken: list[str] = []
    for number, piece in enumerate(pieces[:-1]):
        for line in piece:
            if found := _BOUND.match(line):
                bound[found[1]] = None
        carried = [name for name in bound if name in wanted[len(pieces) - 1 - number]]
        body = [*_unpack(taken), *(_failing(line, failed) for line in piece)]
        body += [f"held += ({''.join(f'{name}, ' for name in carried)})", "return True"]
        text = "\n".join(f"    {line}" for line in body)
        functions.append(f"def check{number}(L, frame, held):\n{text}\n")
        taken = carried
    calls = [
        f"if not check{number}(L, frame, held): return {failed}" for number in range(len(functions))
    ]
    head = ["held = []", *calls, *_unpack(taken)] if functions else []
    return tuple(functions), [*head, *pieces[-1], f"return {value}"]


# --- private ---------------------------------------------------------------------------------


def _cut(lines: Sequence[str], longest: int) -> list[Sequence[str]]:
    """Pieces of about that many lines, loops whole."""
    pieces: list[Sequence[str]] = []
    start = 0
    while len(lines) - start > longest:
        stop = start + longest
        while stop < len(lines) and lines[stop].startswith(" "):
            stop += 1
        pieces.append(lines[start:stop])
        start = stop
    return [*pieces, lines[start:]]


def _unpack(names: Iterable[str]) -> list[str]:
    text = "".join(f"{name}, " for name in names)
    return [f"{text}= held", "held.clear()"] if text else []


def _failing(line: str, failed: str) -> str:
    """The line, which returns False where it returned `failed`."""
    ending = f": return {failed}"
    return f"{line.removesuffix(ending)}: return False" if line.endswith(ending) else line
