"""Kernels that differ in static sizes alone become one function.

    p5[(262144L * i0 + 4096L * i1 + r0)] = ...      with a loop r0 < 4096L
becomes
    p5[(c0 * i0 + c1 * i1 + r0)] = ...              with a loop r0 < c2

and each kernel passes its numbers: building the function dominates a cold compile, and blocks of
a network repeat it at other sizes. Taken out are only numbers that the loop body is as fast
without: strides of the task's own loops, offsets, long trip counts and the number of tasks. Left
as they are: whatever vectorisation depends on (strides inside, short loops, divisions).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from braze.frozen import frozen
from braze.ir.kernels.schedule import Kernel, Store

_LEAST_LENGTH = 256  # of a loop: a shorter one is worth unrolling or an exact epilogue

_PLACES = re.compile(
    r"(?P<stride>\d+)L(?= \* i\d)"
    r"|(?<= \+ )(?P<offset>\d+)L(?=\)\])"
    r"|(?<=; r0 < )(?P<length>\d+)L"
    r"|(?:(?<=rest % )|(?<=rest /= )|(?<= == ))(?P<turn>\d+)L(?=;|\) \{ i)"
)
_TASKS = re.compile(r"(?<=tasks = )[\dL *]+(?=;)|(?<=worth = )\d+L")
_NUMBER = re.compile(r"\d+(?=L)")


@frozen
class Form:
    """A kernel's text with names c0, c1, ... in the place of numbers, and those numbers."""

    text: str
    numbers: tuple[int, ...]


def form_of(kernel: Kernel, text: str) -> Form:
    """The form of a kernel that is one loop of stores; of others, the text itself."""
    if kernel.lanes or kernel.chunks or len(kernel.phases) != 1 or kernel.attention is not None:
        return Form(text, ())
    if not all(isinstance(statement, Store) for statement in kernel.phases[0].body):
        return Form(text, ())
    found: dict[int, str] = {}

    def named(number: str) -> str:
        return found.setdefault(int(number), f"c{len(found)}")

    def replaced(match: re.Match[str]) -> str:
        number = match[match.lastgroup or 0]
        if match.lastgroup == "length" and int(number) < _LEAST_LENGTH:
            return match[0]
        return named(number)

    abstract = _PLACES.sub(replaced, text)
    abstract = _TASKS.sub(
        lambda m: re.sub(r"(c\d+)L", r"\1", _NUMBER.sub(lambda n: named(n[0]), m[0])), abstract
    )
    return Form(abstract, tuple(found))


def declared(numbers: Sequence[int]) -> str:
    """The declaration that gives each number of a form its name; empty without numbers."""
    names = ", ".join(f"c{place} = c[{place}]" for place in range(len(numbers)))
    return f"    const i64 {names};\n" if numbers else ""
