"""Turns a group of definitions into a loop nest: vectorization, loop fusion, stored values.

The vectorised loop goes along single elements in most accesses. Where that is a loop over results
of reductions, tasks take blocks of lanes. Neighbouring loops that walk memory as one loop would
are merged: a contiguous [8, 512, 768] is one loop of 3145728.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, Index, Load, Reduce, Scalar, Scatter
from braze.ir.kernels.scalars import loads, replace_children, substitute_symbols, walk
from braze.ir.kernels.schedule import (
    Accumulate,
    Kernel,
    Loop,
    Phase,
    Store,
    offset,
    scalar_of,
    scatters,
)
from braze.schedule.analysis.cost import estimated
from braze.schedule.analysis.scatter import keep_order, may_share
from braze.schedule.analysis.strides import (
    Walk,
    best_vector_axis,
    load_accesses,
    load_walks,
    store_walk,
    stride_along,
)
from braze.schedule.fusion.fuse import FULL, REDUCTION, ROW, FusionGroup, Member
from braze.schedule.fusion.recompute_in_row import compute_again
from braze.schedule.simplify.normalize import Names
from braze.schedule.simplify.split_loops import divide
from braze.schedule.target import Target
from braze.shapes.expr import (
    ZERO,
    Expr,
    Symbol,
    as_expr,
    constant_value,
    floor_div,
    modulo,
    simplified,
)
from braze.shapes.substitution import substitute

_CHUNK = 4096  # elements of a task of a long loop
_TILE = (32, 64)
_LEAST_TILE = 8  # points of a loop that is worth a side of a tile
_LANES = 512  # elements of a task that scatters
_WANTED_TASKS = 8
_At = TypeVar("_At")


@frozen
class Order:
    """rows, inner: canonical loops in their order; lanes: whether the last row is vectorised."""

    rows: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    lanes: bool


def build_kernel(
    group: FusionGroup, needed: set[Buffer], names: Names, name: str, target: Target
) -> Kernel:
    """The kernel of a group; `needed` are those of its buffers that others read."""
    if target.computes_again:
        group = compute_again(group, needed)
    order = _order(group)
    scratch = _scratch(group, needed, order, names, target.scratch_bytes)
    values = _accumulators(group, needed, names)
    local = (_locals(group, needed) - set(scratch)) | set(values.values())
    phases = _phases(group, order, scratch, values)
    order, phases, places = _divided(order, phases, local, names)
    merge = _merge_flat if group.outer is None else _merge
    merged, replacements = merge(order, places)
    final, renamed = _rename(merged)
    replacements = {old: substitute(new, renamed) for old, new in replacements.items()}
    phases = tuple(_rewrite(phase, replacements, final.inner) for phase in phases)
    kept = tuple(scratch.values())
    kernel = Kernel(
        name,
        final.rows,
        phases,
        _memory(phases, local | set(kept)),
        kept,
        _lanes(final) if final.lanes else 0,
    )
    if group.outer is None and target.orders_scatters:
        kernel = keep_order(kernel)
    return _chunked(group, kernel, target)


# --- order -----------------------------------------------------------------------------------


def _order(group: FusionGroup) -> Order:
    space = dict(group.space)
    if not space:
        return Order((), (), False)
    first = _main_walk(group)
    ordered = sorted(group.space, key=lambda loop: -_distance(first, loop[0]))
    vector = best_vector_axis([symbol for symbol, _ in ordered], _walks(group))
    assert vector is not None
    last = [(vector, space[vector])]
    if group.outer is None:
        return Order(tuple(loop for loop in ordered if loop[0] != vector), tuple(last), False)
    rows = [loop for loop in ordered if loop[0] in group.outer and loop[0] != vector]
    inner = [loop for loop in ordered if loop[0] not in group.outer and loop[0] != vector]
    if vector in group.outer:
        return Order((*rows, *last), tuple(inner), True)
    return Order(tuple(rows), (*inner, *last), False)


def _walks(group: FusionGroup) -> Iterator[Walk]:
    """Every access that is made once a point; what is scattered reads an element and writes it."""
    for member in group.members:
        if member.kind == FULL:
            stored = store_walk(member.definition.target, member.store, member.body)
            yield from (stored, stored) if isinstance(member.body, Scatter) else (stored,)
        if member.kind != ROW:
            yield from load_walks(member.body)


def _main_walk(group: FusionGroup) -> Walk:
    """How the first full member stores, or how the first load of the first other one reads: of a
    scatter, that of its value."""
    for member in group.members:
        if member.kind == FULL and not isinstance(member.body, Scatter):
            return store_walk(member.definition.target, member.store, member.body)
    for member in group.members:
        body = member.body.value if isinstance(member.body, Scatter) else member.body
        for first in load_walks(body):
            return first
    return Walk(ZERO, frozenset())


def _distance(access: Walk, symbol: Symbol) -> float:
    if symbol in access.looked_up:
        return math.inf  # rows that are gathered are anywhere; what is inside of a row is near
    stride = stride_along(access.place, symbol)
    if stride is None:
        return 0.5
    value = constant_value(stride)
    return float(estimated([128])) ** len(stride.terms[0][0]) if value is None else float(value)


def _lanes(order: Order) -> int:
    _, size = order.rows[-1]
    length = estimated([size])
    others = max(1, estimated(n for s, n in order.rows[:-1]))
    blocks = max(1, _WANTED_TASKS // others)
    wanted = -(-length // blocks)
    return min(max(64, -(-wanted // 64) * 64), 512, max(length, 1))


def _chunked(group: FusionGroup, kernel: Kernel, target: Target) -> Kernel:
    """A flat kernel with its long loop cut, or with a loop of its rows made the other side of
    a tile, where something is read along that loop. What is scattered makes no tile."""
    if group.outer is not None or not kernel.phases[0].loops:
        return kernel
    vector, size = kernel.phases[0].loops[-1]
    length = constant_value(size)
    chunk = _CHUNK if length is None or length > 2 * _CHUNK else 0
    stores = scatters(kernel)
    if stores:
        if target.orders_scatters and (length is None or length >= 2 * _LANES):
            chunk = _LANES  # rows are few, where those that meet on an element are none
        may_cut = not target.orders_scatters or all(may_share(s, vector) for s in stores)
        outer = (0,) * (len(kernel.phases[0].loops) - 1)
        return replace(kernel, chunks=(*outer, chunk) if chunk and may_cut else ())
    across = _tiled_row(kernel, vector, target.tiles_stores)
    if across is not None and (length is None or length >= _LEAST_TILE):
        rows = tuple(loop for loop in kernel.rows if loop != across)
        phase = replace(kernel.phases[0], loops=(across, (vector, size)))
        return replace(kernel, rows=rows, phases=(phase,), chunks=_TILE)
    return replace(kernel, chunks=(chunk,) if chunk else ())


def _tiled_row(kernel: Kernel, vector: Symbol, tiles_stores: bool) -> Loop | None:
    """The row loop along whose single elements something is read (or written) that the vector
    loop strides over."""
    for statement in kernel.phases[0].body:
        assert isinstance(statement, Store)
        places = [expr for _, expr in load_accesses(statement.value)]
        if tiles_stores and statement.target in kernel.memory:
            places.append(offset(statement.target, statement.coordinates))
        for expr in places:
            stride = stride_along(expr, vector)
            if stride is None or constant_value(stride) in (0, 1):
                continue
            for symbol, size in kernel.rows:
                along = stride_along(expr, symbol)
                if along is not None and constant_value(along) == 1:
                    length = constant_value(size)
                    return (symbol, size) if length is None or length >= _LEAST_TILE else None
    return None


# --- where values live -----------------------------------------------------------------------


def _locals(group: FusionGroup, needed: set[Buffer]) -> set[Buffer]:
    """Buffers of which no element is needed in memory."""
    later = _read_later(group)
    return {
        m.definition.target
        for m in group.members
        if m.definition.target not in needed
        and (m.kind != FULL or m.definition.target not in later)
    }


def _read_later(group: FusionGroup) -> set[Buffer]:
    """Full members' buffers that a later phase or a row member reads."""
    found: set[Buffer] = set()
    for member in group.members:
        for load in member.reads:
            maker = group.makers.get(load.buffer)
            if maker is None or maker.kind != FULL:
                continue
            if member.kind == ROW or member.phase > maker.phase:
                found.add(load.buffer)
    return found


def _scratch(
    group: FusionGroup, needed: set[Buffer], order: Order, names: Names, room: int
) -> dict[Buffer, Buffer]:
    """Local buffers that must outlive a phase -> the task's small array, where it is small."""
    if group.outer is None or not room:
        return {}
    block = _lanes(order) if order.lanes else 1
    shape = tuple(size for _, size in order.inner)
    if any(constant_value(size) is None for size in shape):
        return {}
    count = estimated(shape) * block
    made: dict[Buffer, Buffer] = {}
    later = _read_later(group)
    for member in group.members:
        target = member.definition.target
        if target in needed or target not in later:
            continue
        size = count * target.dtype.itemsize
        if size > room or not _is_plain(member, group):
            continue
        room -= size
        made[target] = names.buffer(target, shape)
    return made


def _is_plain(member: Member, group: FusionGroup) -> bool:
    stored = [c for c in member.store if c != ZERO]
    return {*stored} == {as_expr(s) for s, _ in group.space} and len(stored) == len(group.space)


def _memory(phases: Sequence[Phase], local: set[Buffer]) -> tuple[Buffer, ...]:
    found: dict[Buffer, None] = {}
    for phase in phases:
        for statement in (*phase.body, *phase.row):
            value = scalar_of(statement)
            found.update(dict.fromkeys(load.buffer for load in loads(value)))
            if isinstance(statement, Store):
                found[statement.target] = None
            else:
                local = local | {statement.target}
    return tuple(buffer for buffer in found if buffer not in local)


# --- statements ------------------------------------------------------------------------------


def _accumulators(group: FusionGroup, needed: set[Buffer], names: Names) -> dict[Buffer, Buffer]:
    """Results of reductions that go to memory -> the row's value that is stored there."""
    targets = [m.definition.target for m in group.members if m.kind == REDUCTION]
    return {t: names.buffer(t, t.shape) for t in targets if t in needed}


def _phases(
    group: FusionGroup,
    order: Order,
    scratch: Mapping[Buffer, Buffer],
    values: Mapping[Buffer, Buffer],
) -> tuple[Phase, ...]:
    count = max(member.phase for member in group.members) + 1
    relocate = _Relocation(group, order, scratch, values)
    phases = []
    for number in range(count):
        members = [m for m in group.members if m.phase == number]
        if not members:
            continue
        body = [relocate.statement(m) for m in members if m.kind != ROW]
        row = [relocate.result(m) for m in members if m.definition.target in relocate.values]
        row += [relocate.store(m) for m in members if m.kind == ROW]
        phases.append(Phase(order.inner, tuple(body), tuple(row)))
    return tuple(phases)


@frozen
class _Relocation:
    """Turns members into statements; loads and stores of scratch buffers go to the arrays."""

    group: FusionGroup
    order: Order
    scratch: Mapping[Buffer, Buffer]
    values: Mapping[Buffer, Buffer]

    def result(self, member: Member) -> Store:
        """A reduction's value written to memory."""
        target = member.definition.target
        value = Load(self.values[target], member.store)
        return Store(target, member.store, value, member.definition.origin)

    def statement(self, member: Member) -> Store | Accumulate:
        return self.fold(member) if member.kind == REDUCTION else self.store(member)

    def fold(self, member: Member) -> Accumulate:
        definition, fold = member.definition, member.definition.body
        assert isinstance(fold, Reduce)
        position = self._position(member) if fold.kind in ("argmax", "argmin") else None
        target = self.values.get(definition.target, definition.target)
        body = self._moved(member.body)
        return Accumulate(target, fold.kind, fold.dtype, body, position, definition.origin)

    def store(self, member: Member) -> Store:
        definition = member.definition
        body = self._moved(member.body)
        target = self.scratch.get(definition.target)
        if target is None:
            return Store(definition.target, member.store, body, definition.origin)
        return Store(target, self._inside(member.store, member.store), body, definition.origin)

    def _position(self, member: Member) -> Expr:
        sizes = dict(self.group.space)
        total = ZERO
        for symbol in member.reduced:
            total = total * sizes[symbol] + symbol
        return total

    def _inside(self, store: Sequence[Expr], coordinates: Sequence[_At]) -> tuple[_At, ...]:
        at = {stored: read for stored, read in zip(store, coordinates) if stored != ZERO}
        return tuple(at[as_expr(symbol)] for symbol, _ in self.order.inner)

    def _moved(self, scalar: Scalar) -> Scalar:
        if not self.scratch or not any(n.buffer in self.scratch for n in loads(scalar)):
            return scalar
        moved = replace_children(scalar, self._moved)
        if isinstance(moved, Load) and moved.buffer in self.scratch:
            maker = self.group.makers[moved.buffer]
            inside = self._inside(maker.store, moved.coordinates)
            return Load(self.scratch[moved.buffer], inside)
        return moved


# --- dividing ----------------------------------------------------------------------------------


def _divided(
    order: Order, phases: tuple[Phase, ...], local: set[Buffer], names: Names
) -> tuple[Order, tuple[Phase, ...], list[Expr]]:
    """Loops cut where accesses divide them, and the expressions that must stay linear."""
    places = _expressions(phases, local)
    rows, rows_map = divide(order.rows, places, names)
    inner, inner_map = divide(order.inner, places, names)
    if not rows_map and not inner_map:
        return order, phases, places
    replacements = {**rows_map, **inner_map}
    phases = tuple(_rewrite(phase, replacements, inner) for phase in phases)
    return Order(rows, inner, order.lanes), phases, _expressions(phases, local)


# --- merging ---------------------------------------------------------------------------------


def _expressions(phases: Sequence[Phase], local: set[Buffer]) -> list[Expr]:
    """Every index expression that must stay linear: offsets of accesses and index values."""
    found: dict[Expr, None] = {}
    for phase in phases:
        for statement in (*phase.body, *phase.row):
            if isinstance(statement, Store):
                if statement.target not in local:
                    found[offset(statement.target, statement.coordinates)] = None
                value = statement.value
            else:
                value = statement.body
                if statement.position is not None:
                    found[statement.position] = None
            for node in walk(value):
                if isinstance(node, Index):
                    found[node.expr] = None
                elif isinstance(node, Load) and node.buffer not in local:
                    found[offset(node.buffer, node.coordinates)] = None
                    found.update(dict.fromkeys(_gathered_parts(node)))
    return list(found)


def _gathered_parts(load: Load) -> Iterable[Expr]:
    """Coordinates beside a gathered one; each is used by itself when bounds are checked."""
    if any(not isinstance(c, Expr) for c in load.coordinates):
        return [c for c in load.coordinates if isinstance(c, Expr)]
    return []


def _merge(order: Order, places: Sequence[Expr]) -> tuple[Order, dict[Symbol, Expr]]:
    """Neighbouring loops merged where every expression stays linear; old symbols -> new."""
    rows, rows_map = _merge_chain(order.rows, places)
    inner, inner_map = _merge_chain(order.inner, places)
    flat = replace(order, rows=rows, inner=inner)
    return flat, {**rows_map, **inner_map}


def _merge_flat(order: Order, places: Sequence[Expr]) -> tuple[Order, dict[Symbol, Expr]]:
    """As `_merge`, with rows and inner loops one chain: nothing separates them in a flat nest."""
    chain, replacements = _merge_chain((*order.rows, *order.inner), places)
    return Order(chain[:-1], chain[-1:], False), replacements


def _merge_chain(
    chain: Sequence[Loop], places: Sequence[Expr]
) -> tuple[tuple[Loop, ...], dict[Symbol, Expr]]:
    strides = [{symbol: stride_along(expr, symbol) for symbol, _ in chain} for expr in places]
    merged: list[Loop] = []
    parts: list[list[Loop]] = []  # the loops that each merged loop is made of
    for symbol, size in chain:
        if merged and _is_one_walk(strides, merged[-1][0], symbol, size):
            total = simplified(as_expr(merged[-1][1]) * size)
            merged[-1] = (symbol, total)
            parts[-1].append((symbol, size))
        else:
            merged.append((symbol, size))
            parts.append([(symbol, size)])
    final = []
    replacements: dict[Symbol, Expr] = {}
    for (_, total), made_of in zip(merged, parts):
        limit = constant_value(total)
        name = "_".join(s.name for s, _ in made_of)
        symbol = Symbol(f"m_{name}", 0, None if limit is None else limit - 1)
        final.append((symbol, total))
        replacements.update(_unmerged(symbol, made_of))
    return tuple(final), replacements


def _is_one_walk(
    strides: Sequence[Mapping[Symbol, Expr | None]], outer: Symbol, inner: Symbol, size: int | Expr
) -> bool:
    if constant_value(size) == 0:
        return False
    for at in strides:
        step, least = at[outer], at[inner]
        if step is None or least is None or step != least * size:
            return False
    return True


def _unmerged(symbol: Symbol, made_of: Sequence[Loop]) -> dict[Symbol, Expr]:
    found: dict[Symbol, Expr] = {}
    rest = as_expr(symbol)
    for position in range(len(made_of) - 1, 0, -1):
        part, size = made_of[position]
        found[part] = modulo(rest, size)
        rest = floor_div(rest, size)
    found[made_of[0][0]] = rest
    return found


# --- final form ------------------------------------------------------------------------------


def _rename(order: Order) -> tuple[Order, dict[Symbol, Expr]]:
    renamed: dict[Symbol, Expr] = {}

    def fresh(loops: Sequence[Loop], prefix: str) -> tuple[Loop, ...]:
        made = []
        for number, (old, size) in enumerate(loops):
            new = Symbol(f"{prefix}{number}", 0, old.upper)
            renamed[old] = as_expr(new)
            made.append((new, size))
        return tuple(made)

    rows = fresh(order.rows, "i")
    return replace(order, rows=rows, inner=fresh(order.inner, "r")), renamed


def _rewrite(phase: Phase, replacements: Mapping[Symbol, Expr], loops: tuple[Loop, ...]) -> Phase:
    def stored(statement: Store) -> Store:
        return replace(
            statement,
            coordinates=tuple(substitute(c, replacements) for c in statement.coordinates),
            value=substitute_symbols(statement.value, replacements),
        )

    def rewrite(statement: Store | Accumulate) -> Store | Accumulate:
        if isinstance(statement, Store):
            return stored(statement)
        position = statement.position
        if position is not None:
            position = substitute(position, replacements)
        body = substitute_symbols(statement.body, replacements)
        return replace(statement, body=body, position=position)

    body = tuple(map(rewrite, phase.body))
    return Phase(loops, body, tuple(map(stored, phase.row)))
