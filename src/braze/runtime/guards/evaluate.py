"""The Python evaluator of guard trees, which defines what they mean.

A walk reads each place once, asks all guards of a place before anything is read from it, and then
compares places with each other. Where a place cannot be read, the walk fails there: what leads to
a place may have gone. The message of a failure is that of the first guard that does not hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import Guard
from braze.ir.captured.guard_tree import PROCESS, GuardNode, GuardTree
from braze.ir.captured.source import Source, operands_of
from braze.runtime.guards.codegen import READ_FAILURES, access
from braze.runtime.guards.kinds import GUARD_KINDS


class GuardFailure(NamedTuple):
    """node: the number of the place, of a relation the last that it compares. guard: where the
    place cannot be read, the first that needs it; None where only an input of the graph does."""

    node: int
    guard: Guard | None
    message: str


def walk(tree: GuardTree, frame: FrameValues) -> list[object] | GuardFailure:
    """The graph's inputs where all guards hold, else the first that does not."""
    values: list[Any] = [None] * len(tree.nodes)
    for failure in _failures(tree, frame, values):
        return failure
    for number in range(tree.guarded, len(tree.nodes)):
        try:
            _read(tree.nodes[number], number, frame, values)
        except READ_FAILURES as error:
            source = tree.nodes[number].source
            return GuardFailure(number, None, _unreachable(f"'{source}'", error))
    return [values[number] for number in tree.inputs]


def evaluate(tree: GuardTree, frame: FrameValues) -> list[object] | None:
    """The graph's inputs where all guards hold, else None."""
    found = walk(tree, frame)
    return None if isinstance(found, GuardFailure) else found


def first_failure(tree: GuardTree, frame: FrameValues) -> GuardFailure | None:
    """The first guard of the walk that does not hold, or None."""
    found = walk(tree, frame)
    return found if isinstance(found, GuardFailure) else None


def explain_failure(tree: GuardTree, frame: FrameValues) -> str:
    """The message of the first guard that does not hold; "" where all hold."""
    failure = first_failure(tree, frame)
    return "" if failure is None else failure.message


def all_failures(tree: GuardTree, frame: FrameValues) -> list[GuardFailure]:
    """Every guard that does not hold; of what is reached through a place that failed, nothing is
    asked: it may not be there."""
    return list(_failures(tree, frame, [None] * len(tree.nodes)))


def reader_of(frame: FrameValues) -> Callable[[Source], object]:
    """What reads the object at a source; each is read once."""
    found: dict[Source, Any] = {}

    def read(source: Source) -> object:
        if source not in found:
            found[source] = access(source, frame, [read(each) for each in operands_of(source)])
        return found[source]

    return read


# --- private ---------------------------------------------------------------------------------


def _failures(tree: GuardTree, frame: FrameValues, values: list[object]) -> Iterator[GuardFailure]:
    """Failures in the order of the walk, which fills `values`; behind the first one the walk goes
    on where what it needs has held."""
    wrong: set[int] = set()
    for number in range(tree.guarded):
        node = tree.nodes[number]
        if wrong and not wrong.isdisjoint(node.operands):
            wrong.add(number)
            continue
        try:
            if number != PROCESS:
                _read(node, number, frame, values)
        except READ_FAILURES as failure:
            wrong.add(number)
            guard = _first_guard_behind(tree, number)
            yield GuardFailure(number, guard, _unreachable(f"'{node.source}'", failure))
            continue
        for guard in node.checks:
            message = _explain(guard, values[number], ())
            if message is not None:
                if number != PROCESS:
                    wrong.add(number)
                yield GuardFailure(number, guard, message)
    for relation in tree.relations:
        if not wrong.isdisjoint(relation.nodes):
            continue
        guard, found = relation.guard, [values[number] for number in relation.nodes]
        value = None if guard.source is None else found.pop(0)
        message = _explain(guard, value, found)
        if message is not None:
            yield GuardFailure(relation.nodes[-1] if relation.nodes else PROCESS, guard, message)


def _first_guard_behind(tree: GuardTree, number: int) -> Guard:
    """The first guard that needs a place, of the place itself or of what is read from it."""
    behind = {number}
    for other in range(number, tree.guarded):
        node = tree.nodes[other]
        if other in behind or not behind.isdisjoint(node.operands):
            behind.add(other)
            if node.checks:
                return node.checks[0]
    return next(r.guard for r in tree.relations if not behind.isdisjoint(r.nodes))


def _read(node: GuardNode, number: int, frame: FrameValues, values: list[object]) -> None:
    assert node.source is not None
    values[number] = access(node.source, frame, [values[operand] for operand in node.operands])


def _explain(guard: Guard, value: object, others: list[object] | tuple[object, ...]) -> str | None:
    explain: Callable[..., str | None] = GUARD_KINDS[guard.kind].explain
    try:
        return explain(guard, value, others)
    except READ_FAILURES as failure:
        where = f"'{guard.source}'" if guard.source is not None else guard.kind.value
        return _unreachable(where, failure)


def _unreachable(where: str, failure: Exception) -> str:
    return f"{where} cannot be reached. {type(failure).__name__}: {failure}"
