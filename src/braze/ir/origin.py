"""Where a piece of the program came from. Carried unchanged from capture to kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import final

from braze.frozen import frozen


@final
@frozen
class Origin:
    """A place in the user's program.

    file: path of the user's source file, as in the code object.
    line: 1-based line number.
    function: name of the function that holds the line.
    call: the torch-level call made there ("torch.nn.functional.linear"), or "".
    op: the operator of the graph that was lowered, where one was ("aten.add.Tensor"), or "".
    inlined: those of statements that were substituted into this one, in the order of computation.
    labels: names of the `record_function` blocks that were open at the call, outermost first.
    """

    file: str
    line: int
    function: str = ""
    call: str = ""
    op: str = ""
    inlined: tuple[Origin, ...] = ()
    labels: tuple[str, ...] = ()

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}"
        return f"{place} {self.call}" if self.call else place


UNKNOWN = Origin("<unknown>", 0)


def with_inlined(origin: Origin, others: Iterable[Origin]) -> Origin:
    """The origin of a statement into which others were substituted."""
    known = dict.fromkeys(part for other in others for part in origins_in(other))
    parts = tuple([part for part in known if part not in origin.inlined])
    return replace(origin, inlined=(*parts, *origin.inlined)) if parts else origin


def of_backward(origin: Origin) -> Origin:
    """The origin of what the backward of a call computes: eager runs it outside of the call's
    labels, which a profile shows as labels of their own."""
    if not origin.labels:
        return origin
    return replace(origin, labels=tuple([f"{label} (backward)" for label in origin.labels]))


def shared_labels(origins: Iterable[Origin]) -> tuple[str, ...]:
    """The labels that all of these places are in, outermost first."""
    found = [*dict.fromkeys(origin.labels for origin in origins)]
    shared: list[str] = []
    for names in zip(*found):
        if len({*names}) > 1:
            break
        shared.append(names[0])
    return tuple(shared)


def origins_in(origin: Origin) -> tuple[Origin, ...]:
    """Those of what was substituted, then the origin itself; none has anything inlined."""
    if not origin.inlined:
        return (origin,)
    return (*origin.inlined, replace(origin, inlined=()))
