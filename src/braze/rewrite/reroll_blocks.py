"""Leaves out most of the equal blocks of a graph: a transformer's layers but for a few.

    %1 = mm(%x, %w0); %2 = relu(%1); %3 = mm(%2, %w1); %4 = relu(%3); ...; %95 = mm(%94, %w47); ...
becomes
    %1 = mm(%x, %w0); %2 = relu(%1); ...; %7 = mm(%6, %w3); %8 = relu(%7)

Blocks are equal if all of their operators, constants, types and what becomes of their results are
(`braze.ir.repeats`). Left alone: blocks that write to an input or capture a tensor of their own,
whose values are read behind the last block (but for those of the last), or that are fewer than
pay.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from braze.ir.graphs.graph import (
    Graph,
    Node,
    Output,
    Value,
    computed_symbol,
    operands,
    replace_operands,
)
from braze.ir.graphs.rerolled import RerolledGraph, RerolledOutput
from braze.ir.repeats import Operation, Repeats, chains_of, find_repeats, makers

if TYPE_CHECKING:
    from braze.options import Options

_KEPT = 5  # periods: two or three that are scheduled alike, and those beside them
_LEAST = _KEPT + 2
_BEFORE = 3  # of them, those before the ones that are left out
_LEAST_NODES = 48  # of what is left out: finding it costs as much as compiling a few


def rerolls(options: Options, repeats: bool, records: bool) -> bool:
    """Whether equal blocks are left out, on a target that repeats schedules or records calls: not
    where recordings are padded, for which the rows of each result are followed through all
    statements."""
    skipped = "reroll_blocks" in options.skip_passes
    return repeats and not skipped and not (options.pad_recordings_to and records)


def reroll_blocks(graph: Graph, seen: int) -> RerolledGraph | None:
    """The graph without most of its equal blocks; None where it has too few. seen: how many of its
    results go to the program."""
    if len(graph.nodes) < _LEAST_NODES or graph.mutations:
        return None
    found = _Roles(graph, seen)
    repeats = find_repeats(found.operations(), _LEAST, found.follows)
    if repeats is None or (repeats.periods - _KEPT) * repeats.length < _LEAST_NODES:
        return None
    try:
        return _Shortening(graph, repeats, seen).run()
    except _ReadElsewhere:
        return None


# --- private ---------------------------------------------------------------------------------


@final
class _ReadElsewhere(Exception):
    """A value of a period is read where no period is."""


class _Roles:
    """What becomes of each value outside of the nodes that read it."""

    def __init__(self, graph: Graph, seen: int) -> None:
        self.graph = graph
        self.roles: dict[Value, list[Hashable]] = {}
        self.fixed = {constant.value for constant in graph.constants}
        self.fixed |= set(graph.used_once)
        made = {value: n for n, node in enumerate(graph.nodes) for value in node.outputs}
        for number, output in enumerate(graph.outputs):
            self._note(output, number < seen, made)

    def _note(self, output: Output, is_seen: bool, made: dict[Value | None, int]) -> None:
        flags = (
            output.detached, output.is_piece, output.is_plain, output.is_untracked,
            output.uncounted, output.version, is_seen,
        )  # fmt: skip
        alias = output.alias
        if alias is None:
            self.roles.setdefault(output.value, []).append(flags)
            return
        base, here = made.get(alias.base), made.get(output.value)
        self.roles.setdefault(alias.base, []).append("base")
        if base is None or here is None:
            self.fixed |= {alias.base, output.value}
            return
        shape = alias.shape, alias.stride, alias.offset, here - base
        self.roles.setdefault(output.value, []).append((flags, shape))

    def operations(self) -> list[Operation[Value]]:
        keys: dict[Hashable, int] = {}
        return [self._operation(node, keys) for node in self.graph.nodes]

    def _operation(self, node: Node, keys: dict[Hashable, int]) -> Operation[Value]:
        written = (node.args, node.kwargs)
        roles = [() if v is None else tuple(self.roles.get(v, ())) for v in node.outputs]
        types = tuple([None if v is None else v.type for v in node.outputs])
        alone = self.fixed.intersection(node.outputs) or computed_symbol(node) is not None
        key = (
            node.op, _form(written), types, tuple(roles), node.grad_enabled,
            node.origin.labels, node if alone else None,
        )  # fmt: skip
        return Operation(keys.setdefault(key, len(keys)), tuple(operands(node)), node.outputs)

    def follows(self, one: Value, other: Value) -> bool:
        """Whether two inputs may be one input of two periods."""
        if one.type != other.type or one in self.fixed or other in self.fixed:
            return False
        return not self.roles.get(one) and not self.roles.get(other)


def _form(argument: Any) -> Hashable:
    """An argument with nothing but the type in the place of its values; of numbers, which of the
    equal ones it is: True, 1, 1.0 and -0.0."""
    if type(argument) is Value:
        return argument.type
    kind = type(argument)
    if kind is tuple or kind is list:
        return (kind, *map(_form, argument))
    if kind is float or kind is complex:
        return (kind, repr(argument))
    return (kind, argument)


@dataclass(slots=True)
class _Shortening:
    """Takes periods out of a graph."""

    graph: Graph
    repeats: Repeats[Value]
    seen: int

    def run(self) -> RerolledGraph:
        graph, repeats = self.graph, self.repeats
        dropped = repeats.periods - _KEPT
        shift = dropped * repeats.length
        begin = repeats.start + _BEFORE * repeats.length
        made = makers([Operation(0, (), node.outputs) for node in graph.nodes])
        chains = chains_of(repeats.next)
        earlier = _Earlier(graph, repeats, begin, shift, dropped, made, chains)
        kept = [*graph.nodes[:begin]]
        for number in range(begin + shift, len(graph.nodes)):
            node = graph.nodes[number]
            is_outside = number >= repeats.end
            moved = {v: earlier.of(v, is_outside) for v in operands(node)}
            kept.append(replace_operands(node, {v: to for v, to in moved.items() if to is not v}))
        for node in graph.nodes[:begin]:
            if any(earlier.is_gone(value) for value in operands(node)):
                raise _ReadElsewhere
        inputs = [n for n, value in enumerate(graph.inputs) if not earlier.is_gone(value)]
        outputs, places = self._outputs(begin, shift, made)
        short = replace(
            graph,
            inputs=tuple([graph.inputs[n] for n in inputs]),
            nodes=tuple(kept),
            outputs=tuple(outputs),
        )
        numbers = {value: n for n, value in enumerate(graph.inputs)}
        placed = tuple([tuple([numbers[v] for v in chain]) for chain in chains])
        seen = sum(not place.in_block for place in places[: self.seen])
        return RerolledGraph(short, dropped, tuple(inputs), placed, tuple(places), seen)

    def _outputs(
        self, begin: int, shift: int, made: dict[Value, tuple[int, int]]
    ) -> tuple[list[Output], list[RerolledOutput]]:
        """The outputs of the short graph, and where those of the whole one are among them."""
        length, dropped = self.repeats.length, self.repeats.periods - _KEPT
        kept: list[Output] = []
        numbers: dict[tuple[int, int, int], int] = {}  # node, result, which output of it
        seen: dict[Value, int] = {}
        waiting: list[tuple[int, tuple[int, int, int], int]] = []
        places: list[RerolledOutput | None] = []
        for output in self.graph.outputs:
            ordinal = seen[output.value] = seen.get(output.value, -1) + 1
            at = made.get(output.value)
            if at is not None and begin <= at[0] < begin + shift:
                later = (at[0] - begin) // length + 1
                waiting.append((len(places), (at[0] - later * length, at[1], ordinal), later))
                places.append(None)
                continue
            later = dropped if at is not None and at[0] >= begin + shift else 0
            base = None if output.alias is None else made.get(output.alias.base)
            if base is not None and begin <= base[0] < begin + shift:
                raise _ReadElsewhere
            if at is not None:
                numbers[at[0], at[1], ordinal] = len(kept)
            places.append(RerolledOutput(len(kept), later))
            kept.append(output)
        for place, key, later in waiting:
            places[place] = RerolledOutput(numbers[key], later, in_block=True)
        return kept, [place for place in places if place is not None]


@final
class _Earlier:
    """What stands in the short graph for values that are read behind the periods left out."""

    def __init__(
        self,
        graph: Graph,
        repeats: Repeats[Value],
        begin: int,
        shift: int,
        dropped: int,
        made: dict[Value, tuple[int, int]],
        chains: list[list[Value]],
    ) -> None:
        self.graph, self.repeats, self.made = graph, repeats, made
        self.begin, self.shift = begin, shift
        self.before: dict[Value, Value] = {}
        self.gone: set[Value] = set()
        self.chained = {value for chain in chains for value in chain}
        for chain in chains:
            if len(chain) <= dropped:
                raise _ReadElsewhere
            self.before.update(zip(chain[dropped:], chain))
            self.gone.update(chain[len(chain) - dropped :])

    def is_gone(self, value: Value) -> bool:
        return value in self.gone

    def of(self, value: Value, is_outside: bool) -> Value:
        """The value's counterpart. is_outside: it is read behind the last period."""
        if value in self.chained:
            if value not in self.before:
                raise _ReadElsewhere
            return self.before[value]
        at = self.made.get(value)
        if at is None or at[0] < self.repeats.start or at[0] >= self.begin + self.shift:
            return value
        if is_outside or at[0] < self.begin:
            raise _ReadElsewhere
        earlier = self.graph.nodes[at[0] - self.shift].outputs[at[1]]
        if earlier is None or at[0] - self.shift < self.repeats.start:
            raise _ReadElsewhere
        return earlier
