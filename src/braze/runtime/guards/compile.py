"""Guards as one generated function per cache entry.

    def check(frame):
        try:
            L = frame.locals
            t0 = L['x']
            if not (type(t0) is c0 and t0.shape == (3, 4) and ...): return None
            t1 = L['self']
            ...
            return [t0, t7]            # the graph's inputs, read on the way
        except READ_FAILURES:
            return None

Guards of an object come before anything is read from it, so no user code of an unexpected class
runs; among those of one depth the cheapest come first. Arguments come before globals and modules.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import final

from braze.frozen import frozen
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.guard import Guard, GuardKind, TensorFacts
from braze.ir.captured.guard_tree import build_guard_tree, guard_rank, order_guards
from braze.ir.captured.source import Source
from braze.runtime.guards.codegen import READ_FAILURES, SourceWriter, known_types
from braze.runtime.guards.kinds import GUARD_KINDS
from braze.runtime.guards.module_reads import module_reads
from braze.runtime.guards.snapshot import Check
from braze.runtime.guards.snapshot_cache import SnapshotMemory
from braze.runtime.guards.split_functions import check_in_parts
from braze.runtime.guards.tensors import tensor_condition


def compile_guards(guards: Iterable[Guard]) -> Callable[[FrameValues], bool]:
    """A function that says whether all guards hold for a frame."""
    ordered = order_guards(guards)
    writer = _writer(ordered, ordered)
    parts, body = _body(writer, ordered, lambda: "True", "False")
    check: Callable[[FrameValues], bool]
    check = writer.function("check", "frame", body, "<braze guards>", parts)
    return check


@final
@frozen(eq=False)
class EntryCheck:
    """check: the graph's inputs where all guards hold for a frame, else None. memory: the snapshots
    of frames that it asks first."""

    check: Check
    memory: SnapshotMemory


def compile_entry_check(guards: Iterable[Guard], inputs: Sequence[Source]) -> EntryCheck:
    """The check of an entry whose graph has those inputs.

    It asks snapshots of frames that passed before (`guards_snapshot.py`), then all guards."""
    memory = SnapshotMemory(build_guard_tree(guards, inputs), tuple(inputs), _generated_check)

    def check(frame: FrameValues) -> list[object] | None:
        for known in memory.checks:
            found = known(frame)
            if found is not None:
                return found
        return memory.check_all(frame)

    return EntryCheck(check, memory)


def _generated_check(
    ordered: Sequence[Guard], inputs: Sequence[Source], known: Sequence[Guard]
) -> Check:
    writer = _writer(ordered, known)

    def result() -> str:
        return f"[{', '.join([writer.read(source) for source in inputs])}]"

    parts, body = _body(writer, ordered, result, "None")
    check: Check
    check = writer.function("check", "frame", body, "<braze guards>", parts)
    return check


def _writer(guards: Sequence[Guard], known: Sequence[Guard]) -> SourceWriter:
    """A writer of guards' text; known: guards that hold where it runs."""
    types = known_types(guards)
    return SourceWriter(
        types if known is guards else known_types(known), module_reads(guards, types)
    )


def _body(
    writer: SourceWriter, guards: Sequence[Guard], result: Callable[[], str], failed: str
) -> tuple[Sequence[str], list[str]]:
    """Functions that the check calls, and its lines."""
    for (_, kind), together in itertools.groupby(
        guards, lambda guard: (guard_rank(guard), guard.kind)
    ):
        if kind is GuardKind.TENSOR_MATCH:
            _write_tensors(writer, list(together), failed)
            continue
        for guard in together:
            condition = GUARD_KINDS[kind].write(writer, guard)
            if condition != "True":
                writer.lines.append(f"if not ({condition}): return {failed}")
    writer.namespace["READ_FAILURES"] = READ_FAILURES
    value = result()
    functions, lines = check_in_parts(writer.lines, value, failed)
    return functions, [
        "try:",
        "    L = frame.locals",
        *(f"    {line}" for line in lines),
        "except READ_FAILURES:",
        f"    return {failed}",
    ]


def _write_tensors(writer: SourceWriter, guards: list[Guard], failed: str) -> None:
    """Tensors of the same facts in one loop: a model of 300 parameters has few kinds of them,
    and compiling Python text is slow."""
    alike: dict[TensorFacts, list[str]] = {}
    for guard in guards:
        alike.setdefault(guard.expected, []).append(writer.read(guard.source))
    for facts, names in alike.items():
        if len(names) == 1:
            condition = tensor_condition(writer, names[0], facts)
            writer.lines.append(f"if not ({condition}): return {failed}")
        else:
            writer.lines.append(f"for tensor in ({', '.join(names)}):")
            condition = tensor_condition(writer, "tensor", facts)
            writer.lines.append(f"    if not ({condition}): return {failed}")
