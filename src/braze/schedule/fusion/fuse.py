"""Fuses definitions into groups, one kernel each.

A group has a space of canonical symbols. Its members map their own axes to them: a *full* member
runs over the whole space, a *row* member over the outer symbols only, a *reduction* over the whole
space with a result a row. A group without reductions is flat: its rows are all points.

Groups stay in an order that respects dependencies; a definition may join any group that does not
come before one that it depends on. Every refusal is kept, with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, Definition, ExternCall, Load, Reduce, Scalar, Statement
from braze.ir.kernels.scalars import loads, substitute_symbols
from braze.ir.kernels.schedule import Loop, Refusal
from braze.schedule.analysis.cost import estimated, loops
from braze.schedule.analysis.scatter import is_scatter
from braze.schedule.analysis.size_availability import NumbersKnown
from braze.schedule.analysis.uses import extern_reads
from braze.schedule.simplify.normalize import Names
from braze.schedule.target import Target
from braze.shapes.binding import NO_SIZES, Sizes
from braze.shapes.expr import Expr, Symbol, as_expr, symbols
from braze.shapes.substitution import substitute

FULL, ROW, REDUCTION = "full", "row", "reduction"

_MOST_BUFFERS = 40  # behind pointers, in one kernel: registers for addresses run out
_NEARBY = 8  # latest groups that an unrelated small definition may join


@frozen(eq=False)
class Member:
    """A definition in a group's symbols, its body, too, which is held as it was given no longer.
    phase: the index of the pass over the row in which (for a row member: after which) it is
    computed."""

    definition: Definition
    kind: str
    phase: int
    store: tuple[Expr, ...]
    body: Scalar
    reads: tuple[Load, ...]
    reduced: tuple[Symbol, ...] = ()


@dataclass(slots=True, eq=False)
class FusionGroup:
    """space: canonical loops; outer: those of the rows, None while the group is flat.

    makers: the member that makes each buffer; first_reads: the first load of each buffer read.
    """

    space: tuple[Loop, ...]
    outer: frozenset[Symbol] | None
    members: list[Member] = field(default_factory=list)
    makers: dict[Buffer, Member] = field(default_factory=dict)
    first_reads: dict[Buffer, Load] = field(default_factory=dict)

    def add(self, member: Member) -> None:
        """Make the definition a member; its reads come after those of the members before."""
        self.members.append(member)
        self.makers[member.definition.target] = member
        for load in member.reads:
            self.first_reads.setdefault(load.buffer, load)


@frozen(eq=False)
class Candidate:
    """A definition that looks for a group, with what every group asks of it."""

    definition: Definition
    loops: tuple[Loop, ...]
    reads: tuple[Load, ...]
    buffers: frozenset[Buffer]


@dataclass(slots=True, eq=False)
class Extern:
    """An extern call's place among the groups."""

    call: ExternCall


@frozen
class Fused:
    """Groups and extern calls in order, the buffers that kernels share, and what was not fused."""

    places: list[FusionGroup | Extern]
    shared_targets: frozenset[Buffer]
    refusals: tuple[Refusal, ...]


@dataclass(slots=True)
class Fusion:
    """The state of the walk over the statements."""

    names: Names
    limit: int
    few_rows: int
    small_points: int
    places: list[FusionGroup | Extern] = field(default_factory=list)
    made_at: dict[Buffer, int] = field(default_factory=dict)
    # The groups that read or make a buffer and may take more, and the last of all: a set takes 200
    # bytes.
    touching: dict[Buffer, list[int]] = field(default_factory=dict)
    last_touching: dict[Buffer, int] = field(default_factory=dict)
    shared_targets: set[Buffer] = field(default_factory=set)
    read_by_calls: dict[Buffer, int] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    numbers: NumbersKnown | None = None
    late: frozenset[Buffer] = frozenset()
    after_extern: int = 0
    inputs: frozenset[Buffer] = frozenset()


def fuse(
    statements: list[Statement],
    names: Names,
    limit: int,
    target: Target,
    sizes: Sizes = NO_SIZES,
    late: frozenset[Buffer] = frozenset(),
    apart: frozenset[Buffer] = frozenset(),
    inputs: Sequence[Buffer] = (),
) -> Fused:
    """Groups and extern calls in order; `limit` is the most definitions of a group. A reduction to
    fewer than the target's `few_rows` rows does not join a large group of points. late: what stays
    behind the extern call before it. apart: what kernels of their own make. inputs: what is
    scattered into after all calls before, which may fail. The list is emptied: a statement goes
    when it has its place."""
    fusion = Fusion(names, limit, target.few_rows, target.small_points, late=late)
    fusion.inputs = frozenset(inputs)
    if any(isinstance(s, ExternCall) and s.computes is not None for s in statements):
        fusion.numbers = NumbersKnown(sizes)
    fusion.shared_targets |= apart
    seen: set[Buffer] = set()
    for statement in statements:
        if isinstance(statement, Definition):
            if statement.target in seen or is_scatter(statement):
                fusion.shared_targets.add(statement.target)
            seen.add(statement.target)
    statements.reverse()
    while statements:
        statement = statements.pop()
        if isinstance(statement, ExternCall):
            _place_extern(fusion, statement)
        else:
            _place_definition(fusion, statement)
    return Fused(fusion.places, frozenset(fusion.shared_targets), tuple(fusion.refusals))


# --- private ---------------------------------------------------------------------------------


def _place_extern(fusion: Fusion, call: ExternCall) -> None:
    fusion.places.append(Extern(call))
    fusion.after_extern = len(fusion.places)
    if fusion.numbers is not None and call.computes is not None:
        fusion.numbers.note(call.computes, len(fusion.places))
    for buffer in call.outputs:
        if buffer is not None:
            fusion.made_at[buffer] = len(fusion.places) - 1
    for buffer in extern_reads(call):
        fusion.read_by_calls[buffer] = len(fusion.places) - 1


def _place_definition(fusion: Fusion, definition: Definition) -> None:
    reads = tuple(loads(definition.body))
    buffers = frozenset(load.buffer for load in reads)
    candidate = Candidate(definition, loops(definition), reads, buffers)
    earliest = fusion.after_extern if definition.target in fusion.late else 0
    for buffer in buffers:
        place = fusion.made_at.get(buffer)
        if place is not None:
            apart = buffer in fusion.shared_targets or isinstance(fusion.places[place], Extern)
            earliest = max(earliest, place + 1 if apart else place)
    if fusion.numbers is not None:
        earliest = max(earliest, fusion.numbers.earliest(definition))
    if is_scatter(definition):
        earliest = max(earliest, _after_all(fusion, definition.target))
        if definition.target in fusion.inputs:
            earliest = max(earliest, fusion.after_extern)
    position = _find_place(fusion, candidate, earliest)
    if position is None:
        fusion.places.append(_new_group(fusion, candidate))
        position = len(fusion.places) - 1
    for buffer in (*buffers, definition.target):
        fusion.touching.setdefault(buffer, []).append(position)
        fusion.last_touching[buffer] = max(position, fusion.last_touching.get(buffer, -1))
    before = fusion.made_at.get(definition.target, 0)
    fusion.made_at[definition.target] = max(position, before)


def _after_all(fusion: Fusion, target: Buffer) -> int:
    """The first place behind whatever reads or writes the contents that a scatter changes."""
    noted = (fusion.made_at, fusion.read_by_calls, fusion.last_touching)
    return max(places.get(target, -1) for places in noted) + 1


def _find_place(fusion: Fusion, candidate: Candidate, earliest: int) -> int | None:
    touching = fusion.touching
    related = {n for buffer in candidate.buffers for n in touching.get(buffer, ()) if n >= earliest}
    last = len(fusion.places)
    nearby = range(max(earliest, last - _NEARBY), last)
    refused: dict[str, list[str]] = {}
    found, full = None, set()
    for position in sorted(related | set(nearby)):
        group = fusion.places[position]
        if not isinstance(group, FusionGroup):
            continue
        if position not in related and not _is_worth_joining(fusion, group, candidate):
            continue
        refusal = _joined(fusion, group, candidate)
        if refusal is None:
            found = position
            break
        if position in related:
            refused.setdefault(refusal, []).append(group.members[0].definition.target.name)
            if _is_full(fusion, group):
                full.add(position)
    if full:  # asked once: of an input that every layer reads there are as many groups as layers
        for buffer in candidate.buffers & touching.keys():
            touching[buffer] = [n for n in touching[buffer] if n not in full]
    name = candidate.definition.target.name
    fusion.refusals += [Refusal(tuple(first), name, reason) for reason, first in refused.items()]
    return found


def _is_full(fusion: Fusion, group: FusionGroup) -> bool:
    """Whether the group takes nothing more, whatever it is."""
    buffers = len(group.first_reads.keys() | group.makers.keys()) + 1
    return len(group.members) >= fusion.limit or buffers > _MOST_BUFFERS


def _is_worth_joining(fusion: Fusion, group: FusionGroup, candidate: Candidate) -> bool:
    """Independent definitions share a kernel where starting one costs as much as running it."""
    small = estimated(size for _, size in group.space) <= fusion.small_points
    if not small or _is_full(fusion, group):
        return False
    return estimated(size for _, size in candidate.loops) <= fusion.small_points


def _new_group(fusion: Fusion, candidate: Candidate) -> FusionGroup:
    definition = candidate.definition
    space = []
    mapping: dict[Symbol, Symbol] = {}
    for symbol, size in candidate.loops:
        canonical = fusion.names.symbol("c", size)
        mapping[symbol] = canonical
        space.append((canonical, size))
    outer = None
    if isinstance(definition.body, Reduce):
        outer = frozenset(mapping[s] for s, _ in definition.axes)
    group = FusionGroup(tuple(space), outer)
    group.add(_member(definition, mapping, _kind(definition, FULL)))
    return group


def _kind(definition: Definition, otherwise: str) -> str:
    return REDUCTION if isinstance(definition.body, Reduce) else otherwise


def _member(definition: Definition, mapping: dict[Symbol, Symbol], kind: str) -> Member:
    body = definition.body
    replacements = {old: as_expr(new) for old, new in mapping.items()}
    store = tuple(substitute(c, replacements) for c in definition.store)
    if not isinstance(body, Reduce):
        inside = substitute_symbols(body, replacements)
        definition = replace(definition, body=inside)
        return Member(definition, kind, 0, store, inside, tuple(loads(inside)))
    reduced = tuple(mapping[s] for s, _ in body.axes)
    inside = substitute_symbols(body.body, replacements)
    definition = replace(definition, body=replace(body, body=inside))
    return Member(definition, kind, 0, store, inside, tuple(loads(inside)), reduced)


def _joined(fusion: Fusion, group: FusionGroup, candidate: Candidate) -> str | None:
    """Add the definition to the group; a reason where it cannot be."""
    definition = candidate.definition
    if len(group.members) >= fusion.limit:
        return f"the kernel has {fusion.limit} definitions already"
    if definition.target in group.first_reads:
        return f"it reads another part of {definition.target}"
    if group.outer is not None and is_scatter(definition):
        return "it scatters, and the kernel has rows"
    mapping = _mapping(group, candidate)
    if isinstance(mapping, str):
        return mapping
    kind = _kind_in(group, candidate, mapping)
    if kind not in (FULL, ROW, REDUCTION):
        return kind
    outer = group.outer
    if kind == REDUCTION and outer is None:
        if any(is_scatter(member.definition) for member in group.members):
            return "the kernel scatters, and it needs rows"
        outer = frozenset(mapping[s] for s, _ in definition.axes)
        if _loses_parallelism(group, outer, fusion.few_rows):
            return "rows too few for all threads"
    member = _member(definition, mapping, kind)
    phase = _phase(group, member, outer)
    if isinstance(phase, str):
        return phase
    if _buffers(group, candidate) > _MOST_BUFFERS:
        return f"more than {_MOST_BUFFERS} buffers"
    group.outer = outer
    group.add(replace(member, phase=phase))
    return None


def _loses_parallelism(group: FusionGroup, outer: frozenset[Symbol], few_rows: int) -> bool:
    rows = estimated(size for symbol, size in group.space if symbol in outer)
    return rows < few_rows and estimated(size for _, size in group.space) > 65536


def _buffers(group: FusionGroup, candidate: Candidate) -> int:
    return len(group.first_reads.keys() | group.makers.keys() | candidate.buffers) + 1


def _mapping(group: FusionGroup, candidate: Candidate) -> dict[Symbol, Symbol] | str:
    """The definition's loops -> canonical symbols: as its loads of what the group makes say, the
    rest by equal sizes in order."""
    mapping = _mapping_by_loads(group, candidate)
    sizes = dict(group.space)
    own = candidate.loops
    if len(own) > len(sizes):
        return "more loops than the kernel"
    if any(as_expr(sizes[mapping[s]]) != as_expr(n) for s, n in own if s in mapping):
        return "ranges differ"
    for order in _candidate_orders(group, candidate.definition):
        complete = _complete(dict(mapping), own, order)
        if complete is not None:
            return complete
    return "ranges differ"


def _candidate_orders(group: FusionGroup, definition: Definition) -> list[tuple[Loop, ...]]:
    """Canonical loops that the definition may run over: all of them, or those of the rows."""
    if group.outer is None:
        return [group.space]
    rows = tuple(loop for loop in group.space if loop[0] in group.outer)
    inner = tuple(loop for loop in group.space if loop[0] not in group.outer)
    if isinstance(definition.body, Reduce):
        return [group.space, (*rows, *inner)]
    return [group.space, rows]


def _complete(
    mapping: dict[Symbol, Symbol], own: Sequence[Loop], canonical: Sequence[Loop]
) -> dict[Symbol, Symbol] | None:
    if len(own) != len(canonical):
        return None
    if not set(mapping.values()) <= {symbol for symbol, _ in canonical}:
        return None
    free = [loop for loop in canonical if loop[0] not in mapping.values()]
    for symbol, size in own:
        if symbol in mapping:
            continue
        match = next((c for c, n in free if as_expr(n) == as_expr(size)), None)
        if match is None:
            return None
        mapping[symbol] = match
        free = [loop for loop in free if loop[0] != match]
    return mapping


def _mapping_by_loads(group: FusionGroup, candidate: Candidate) -> dict[Symbol, Symbol]:
    own = {symbol for symbol, _ in candidate.loops}
    loops = {symbol for symbol, _ in group.space}  # a coordinate may be a size: `x[n]`
    mapping: dict[Symbol, Symbol] = {}
    for load in candidate.reads:
        maker = group.makers.get(load.buffer)
        pairs = zip(load.coordinates, maker.store) if maker is not None else _shared(group, load)
        for coordinate, canonical in pairs:
            symbol = _bare(coordinate)
            target = _bare(canonical)
            if symbol in own and symbol not in mapping and target is not None and target in loops:
                if target in mapping.values():
                    continue
                mapping[symbol] = target
    return mapping


def _shared(group: FusionGroup, load: Load) -> list[tuple[Expr | Scalar, Expr | Scalar]]:
    """Coordinates of the load beside those of a member's load of the same buffer."""
    other = group.first_reads.get(load.buffer)
    return [] if other is None else list(zip(load.coordinates, other.coordinates))


def _bare(coordinate: Expr | Scalar) -> Symbol | None:
    if not isinstance(coordinate, Expr):
        return None
    named = symbols(coordinate)
    if len(named) != 1:
        return None
    symbol = next(iter(named))
    return symbol if coordinate == as_expr(symbol) else None


def _kind_in(group: FusionGroup, candidate: Candidate, mapping: dict[Symbol, Symbol]) -> str:
    definition = candidate.definition
    everything = frozenset(symbol for symbol, _ in group.space)
    covered = frozenset(mapping[s] for s, _ in candidate.loops)
    if isinstance(definition.body, Reduce):
        kept = frozenset(mapping[s] for s, _ in definition.axes)
        if covered != everything:
            return "reduces over other loops"
        return REDUCTION if group.outer in (None, kept) else "keeps other axes than the rows"
    if covered == everything:
        return FULL
    if covered == group.outer:
        return ROW
    return "runs over a part of the loops"


def _phase(group: FusionGroup, member: Member, outer: frozenset[Symbol] | None) -> int | str:
    phase = 0
    for load in member.reads:
        maker = group.makers.get(load.buffer)
        if maker is None:
            continue
        reached = _phase_after(maker, member, load, outer)
        if isinstance(reached, str):
            return reached
        phase = max(phase, reached)
    return phase


def _phase_after(
    maker: Member, member: Member, load: Load, outer: frozenset[Symbol] | None
) -> int | str:
    same = load.coordinates == maker.store
    if maker.kind == FULL:
        if same and member.kind != ROW:
            return maker.phase
        if outer is None:
            return f"reads {load.buffer} at another point"
        if not _same_row(maker.store, load.coordinates, outer):
            return f"reads {load.buffer} in another row"
        return maker.phase if member.kind == ROW else maker.phase + 1
    if not same:
        return f"reads {load.buffer} in another row"
    return maker.phase if member.kind == ROW else maker.phase + 1


def _same_row(
    store: tuple[Expr, ...], coordinates: tuple[Expr | Scalar, ...], outer: frozenset[Symbol]
) -> bool:
    covered: set[Symbol] = set()
    for stored, read in zip(store, coordinates):
        rows = symbols(stored) & outer
        if rows and stored != read:
            return False
        covered |= rows
    return covered == outer
