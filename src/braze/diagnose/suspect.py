"""The first part of the compiler that is wrong about a graph."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from typing import final

from braze.frozen import frozen
from braze.ir.origin import Origin

CRASH = "crash"
WRONG = "wrong value"
SLOW = "slow-down"


@final
@frozen
class Suspect:
    """What is wrong, and where.

    kind: CRASH, WRONG or SLOW. stage: "capture", "autograd", "rewrite", "lower", "schedule",
        "codegen", "link" or "guards" (of a slow call: graph breaks, too). part: the pass or the
        kernel; "" where the stage has no parts.
    detail: the exception's text, how far from eager's the values are, or the times.
    origins: the places in the program that are concerned; operators: those of the graph.
    """

    kind: str
    stage: str
    part: str
    detail: str
    origins: tuple[Origin, ...] = ()
    operators: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The stage and its part."""
        return f"{self.stage}: {self.part}" if self.part else self.stage

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.kind}: {self.detail}"]
        if self.operators:
            lines.append(f"  operators: {', '.join(self.operators)}")
        return "\n".join([*lines, *_places(self.origins)])


def is_same(one: Suspect, other: Suspect | None) -> bool:
    """Whether both fail in the same way: kernels are named anew in every graph."""
    if other is None or (one.kind, one.stage) != (other.kind, other.stage):
        return False
    if one.kind == CRASH and _exception(one) != _exception(other):
        return False
    return one.stage == "codegen" or one.part == other.part


# --- private ---------------------------------------------------------------------------------


def _exception(suspect: Suspect) -> str:
    return suspect.detail.split(":")[0]


def _places(origins: Iterable[Origin]) -> list[str]:
    places = dict.fromkeys((o.file, o.line, o.function) for o in origins if o.line)
    return [
        f"  {file}:{line} in {function}: {linecache.getline(file, line).strip()}"
        for file, line, function in places
    ]
