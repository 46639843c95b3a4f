"""The guard tree: the guards of one entry as a program that an evaluator walks.

    guards                                      GuardTree
    AMBIENT: grad mode on                       (process)
    L['self'] TYPE_MATCH Model                    AMBIENT: grad mode on
    L['self'].weight TENSOR_MATCH f32[3]   ->   L['self']
    L['x'] TENSOR_MATCH f32[3]                    TYPE_MATCH: Model
    DISTINCT L['x'], L['self'].weight             L['self'].weight
                                                    TENSOR_MATCH: f32[3]
                                                L['x']
                                                  TENSOR_MATCH: f32[3]
                                                DISTINCT: L['x'], L['self'].weight

A node is a place: its source is the accessor that leads there from its operands, the nodes that
the accessor reads. The nodes stand in the order of the walk, operands before the nodes that read
them, and the guards of a node stand before everything that is read from it: no user code of an
unexpected class runs. `runtime/guards/evaluate.py` defines what the tree means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

from braze.errors import InternalError
from braze.frozen import frozen
from braze.ir.captured.guard import Guard, GuardKind
from braze.ir.captured.source import ObjectSource, Source, operands_of

PROCESS = 0  # the number of the node that has no source: guards ask the process itself

# Nanoseconds that a guard of the kind takes, roughly: of one place the cheap guards come first.
COSTS: dict[GuardKind, int] = {
    GuardKind.AMBIENT: 0,
    GuardKind.ID_MATCH: 10,
    GuardKind.TYPE_MATCH: 20,
    GuardKind.EQUALS_MATCH: 30,
    GuardKind.COMPARES: 30,
    GuardKind.LENGTH: 40,
    GuardKind.SAME_OBJECT: 50,
    GuardKind.DIFFERENT_OBJECT: 50,
    GuardKind.DICT_CONTAINS: 60,
    GuardKind.DICT_LACKS: 60,
    GuardKind.HAS_ATTRIBUTE: 70,
    GuardKind.ITEMS_LEFT: 90,
    GuardKind.DICT_KEYS: 100,
    GuardKind.NAMESPACE: 150,
    GuardKind.NO_HOOKS: 150,
    GuardKind.ANSWER: 200,
    GuardKind.HOLDS: 300,
    GuardKind.SIZES: 300,
    GuardKind.CLASS_LOOKUPS: 400,
    GuardKind.TENSOR_MATCH: 400,
    GuardKind.ARRAY_MATCH: 400,
    GuardKind.STORAGE_OFFSET: 450,
    GuardKind.VIEW: 450,
    GuardKind.UNCACHED: 450,
    GuardKind.ABSTRACT_CLASSES: 500,
    GuardKind.FUNCTIONS: 500,
    GuardKind.DISTINCT: 500,
    GuardKind.NONE_WATCHED: 700,
    GuardKind.APART: 900,
    GuardKind.STORAGE_OVERLAP: 900,
}

# Kinds that compare several places with each other.
RELATIONS = frozenset(
    {
        GuardKind.SAME_OBJECT,
        GuardKind.DIFFERENT_OBJECT,
        GuardKind.DISTINCT,
        GuardKind.STORAGE_OVERLAP,
        GuardKind.APART,
        GuardKind.NONE_WATCHED,
        GuardKind.SIZES,
    }
)


@final
@frozen(eq=False)
class GuardNode:
    """A place that guards read."""

    # How messages name the place, and the accessor that leads there; None: the process.
    source: Source | None
    # The numbers of the nodes whose values the accessor reads; none of a root.
    operands: tuple[int, ...]
    # The guards of this place alone, cheapest first.
    checks: tuple[Guard, ...]


@final
@frozen(eq=False)
class GuardRelation:
    """A guard that compares several places."""

    guard: Guard
    # The node of the guard's source, if it has one, then those of `compared_sources`.
    nodes: tuple[int, ...]


@final
@frozen(eq=False)
class GuardTree:
    """The guards of one entry, and the inputs of its graph."""

    # In the order of the walk; the first is the process.
    nodes: tuple[GuardNode, ...]
    # How many nodes guards read; the others lead to inputs only and are read when all guards hold.
    guarded: int
    # Asked when all nodes that guards read are there.
    relations: tuple[GuardRelation, ...]
    # The nodes of the graph's inputs.
    inputs: tuple[int, ...]

    def guards(self) -> list[Guard]:
        """All guards, in the order of the walk."""
        found = [guard for node in self.nodes for guard in node.checks]
        return [*found, *(relation.guard for relation in self.relations)]


def build_guard_tree(guards: Iterable[Guard], inputs: Sequence[Source] = ()) -> GuardTree:
    """The tree of guards in any order; a guard that is there twice is asked once."""
    builder = _TreeBuilder()
    ordered = order_guards(guards)
    for guard in ordered:
        if guard.kind not in RELATIONS:
            number = PROCESS if guard.source is None else builder.number_of(guard.source)
            builder.checks[number].append(guard)
    relations = []
    for guard in ordered:
        if guard.kind in RELATIONS:
            sources = [] if guard.source is None else [guard.source]
            sources += compared_sources(guard)
            relations.append(GuardRelation(guard, tuple(map(builder.number_of, sources))))
    guarded = len(builder.sources)
    given = tuple(map(builder.number_of, inputs))
    nodes = [
        GuardNode(source, operands, tuple(sorted(checks, key=_cost)))
        for source, operands, checks in zip(builder.sources, builder.operands, builder.checks)
    ]
    return GuardTree(tuple(nodes), guarded, tuple(relations), given)


def order_guards(guards: Iterable[Guard]) -> list[Guard]:
    """Outer places first, cheap guards first, relations last; each guard once."""
    unique: dict[tuple[Any, ...], Guard] = {}
    numbers: dict[Source, int] = {}
    known: dict[int, int] = {}  # a source hashes its whole chain: most are found by identity
    for guard in guards:
        source = guard.source
        where = -1 if source is None else known.get(id(source), -2)
        if where == -2 and source is not None:
            where = known[id(source)] = numbers.setdefault(source, len(numbers))
        unique.setdefault((guard.kind, where, id(guard.expected)), guard)
    return sorted(unique.values(), key=guard_rank)


def guard_rank(guard: Guard) -> tuple[int, int, int]:
    """What guards are ordered by: arguments come before what the entry holds."""
    is_relation = guard.kind in RELATIONS
    cost = COSTS[guard.kind]
    if guard.source is None:
        return (is_relation, 0 if guard.kind is GuardKind.AMBIENT else 1, cost)
    if guard.kind is GuardKind.CLASS_LOOKUPS:  # before any attribute is read: one may be a hook now
        return (is_relation, 1, cost)
    is_held = isinstance(guard.source, ObjectSource)
    return (is_relation, 1 + is_held + source_depth(guard.source), cost)


def compared_sources(guard: Guard) -> tuple[Source, ...]:
    """The places that a relation reads beside its own source, in the order of `expected`."""
    kind, expected = guard.kind, guard.expected
    if kind in (GuardKind.SAME_OBJECT, GuardKind.DIFFERENT_OBJECT):
        return (expected,)
    if kind is GuardKind.STORAGE_OVERLAP:
        return tuple([source for group in expected for source in group])
    if kind is GuardKind.SIZES:
        return tuple([source for _, source in expected.sources])
    return tuple(expected) if kind in RELATIONS else ()


def source_depth(source: Source) -> int:
    """How many steps lead from a root to the source; 0 for a root."""
    depth = 0
    operands = operands_of(source)
    while operands:
        depth += 1
        operands = operands_of(operands[0])
    return depth


def verify_guard_tree(tree: GuardTree) -> None:
    """Raise InternalError where the tree breaks a rule that its evaluators rely on."""
    seen: dict[Source, int] = {}
    if not tree.nodes or tree.nodes[PROCESS].source is not None:
        raise _broken("the first node is the process", None)
    for number, node in enumerate(tree.nodes):
        if node.source is None:
            if number != PROCESS:
                raise _broken("the process is one node", None)
        elif node.source in seen:
            raise _broken(f"{node.source} is two nodes", node.source)
        else:
            read = [seen.get(operand) for operand in operands_of(node.source)]
            if read != [*node.operands]:
                raise _broken(f"{node.source} reads nodes {node.operands}, not {read}", node.source)
            seen[node.source] = number
        _verify_checks(number, node, tree.guarded)
    for relation in tree.relations:
        guard = relation.guard
        sources = [*([] if guard.source is None else [guard.source]), *compared_sources(guard)]
        if guard.kind not in RELATIONS:
            raise _broken(f"{guard.kind.value} is asked of one place", guard.source)
        if [seen.get(source) for source in sources] != [*relation.nodes]:
            raise _broken(f"{guard.kind.value} compares other nodes than its sources", guard.source)
        if any(node >= tree.guarded for node in relation.nodes):
            raise _broken(f"{guard.kind.value} compares what is read behind it", guard.source)
    if not all(0 < number < len(tree.nodes) for number in tree.inputs):
        raise _broken("an input is no node", None)


# --- private ---------------------------------------------------------------------------------


def _verify_checks(number: int, node: GuardNode, guarded: int) -> None:
    for guard in node.checks:
        if guard.source != node.source:
            raise _broken(f"{guard.kind.value} stands at {node.source}", guard.source)
        if guard.kind in RELATIONS:
            raise _broken(f"{guard.kind.value} compares several places", guard.source)
    if node.checks and number >= guarded:
        raise _broken(f"{node.source} is read behind the guards and has some", node.source)
    if [*node.checks] != sorted(node.checks, key=_cost):
        raise _broken(f"the guards of {node.source} are not ordered by cost", node.source)


def _broken(rule: str, source: Source | None) -> InternalError:
    where = "" if source is None else f" (at {source})"
    return InternalError("runtime", f"guard tree: {rule}{where}")


def _cost(guard: Guard) -> int:
    return COSTS[guard.kind]


class _TreeBuilder:
    """Numbers places in the order in which they are first needed."""

    def __init__(self) -> None:
        self.sources: list[Source | None] = [None]
        self.operands: list[tuple[int, ...]] = [()]
        self.checks: list[list[Guard]] = [[]]
        self._numbers: dict[Source, int] = {}
        # A source hashes its whole chain: most are found by their identity.
        self._by_identity: dict[int, int] = {}
        self._held: list[Source] = []

    def number_of(self, source: Source) -> int:
        """The number of the source's node, made behind the nodes that it reads."""
        number = self._by_identity.get(id(source))
        if number is None:
            number = self._numbers.get(source)
            if number is None:
                operands = tuple(map(self.number_of, operands_of(source)))
                number = self._numbers[source] = len(self.sources)
                self.sources.append(source)
                self.operands.append(operands)
                self.checks.append([])
            self._by_identity[id(source)] = number
            self._held.append(source)
        return number
