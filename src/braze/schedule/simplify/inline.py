"""Inlines definitions into the definitions that read them.

    t[i0] = x[i0] * 2
    y[i0, i1] = t[i1] + z[i0, i1]          becomes         y[i0, i1] = x[i1] * 2 + z[i0, i1]

Inlined is what is read once and not computed more often for it, and what is cheaper to compute
again than to write and read: one load and a few operations. Refused: reductions, what is heavy
and would be computed more often, buffers that the program's outputs, mutations or extern calls
need, targets of several definitions, and bodies that use an index as a value where a gather
reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from braze.ir.kernels.loops import Definition, ExternCall, Index, Load, Reduce, Scalar, Statement
from braze.ir.kernels.scalars import (
    children,
    index,
    rebuild,
    replace_children,
    substitute_symbols,
    walk,
)
from braze.ir.origin import with_inlined
from braze.schedule.analysis.cost import distinct_loads, is_heavy, operations, points
from braze.schedule.analysis.uses import Uses
from braze.shapes.expr import Expr, Symbol, as_expr, constant_value, symbols

_CHEAP_OPERATIONS = 3
_LARGEST_BODY = 96  # operations; above, a body is not copied any more

Replacement = Mapping[Symbol, Expr | Scalar]


def inline(
    statements: list[Statement], uses: Uses, broadcasts_count: bool = True
) -> list[Statement]:
    """The statements without the definitions that were inlined into all of their readers. The list
    is emptied: a definition goes when another one comes in its place.

    broadcasts_count: what is read at fewer points than it is used at is a load like any other.
    """
    bodies = {i: s for i, s in enumerate(statements) if isinstance(s, Definition)}
    calls = {i: s for i, s in enumerate(statements) if isinstance(s, ExternCall)}
    count = len(statements)
    statements.clear()
    for position in list(bodies):
        definition = bodies[position]
        readers = [p for p in uses.readers(definition.target) if p in bodies]
        if not _may_inline(definition, uses):
            continue
        reading = [bodies[p] for p in readers]
        if not reading or not _pays(definition, reading, broadcasts_count):
            continue
        for p in readers:
            bodies[p] = _with_inlined(bodies[p], definition)
        uses.move(definition, readers)
        del bodies[position]
    everything: dict[int, Statement] = {**bodies, **calls}
    return [everything[i] for i in range(count) if i in everything]


# --- private ---------------------------------------------------------------------------------


def _may_inline(definition: Definition, uses: Uses) -> bool:
    return (
        not isinstance(definition.body, Reduce)
        and not uses.is_needed_outside(definition.target)
        and uses.is_single_definition(definition.target)
        and _bare_store(definition) is not None
    )


def _pays(definition: Definition, readers: Sequence[Definition], broadcasts_count: bool) -> bool:
    reads = [
        load
        for reader in readers
        for load in distinct_loads(reader.body)
        if load.buffer is definition.target
    ]
    if not all(_can_substitute(definition, load) for load in reads):
        return False
    cost = operations(definition.body)
    if len(reads) == 1 and not is_heavy(definition.body):
        return cost + operations(readers[0].body) <= _LARGEST_BODY
    if len(reads) == 1:
        grows = points(readers[0]) > points(definition)
        return not grows and cost + operations(readers[0].body) <= 4 * _LARGEST_BODY
    read = distinct_loads(definition.body)
    if not broadcasts_count:
        read = {load for load in read if _touches_all(load, definition)}
    return cost <= _CHEAP_OPERATIONS and len(read) <= 1


def _touches_all(load: Load, definition: Definition) -> bool:
    """Whether every point of the definition reads an element of its own, or may."""
    exprs = [c for c in load.coordinates if isinstance(c, Expr)]
    named = frozenset().union(*(symbols(c) for c in exprs))
    gathers = len(exprs) < len(load.coordinates)
    return gathers or named >= {symbol for symbol, _ in definition.axes}


def _bare_store(definition: Definition) -> dict[int, Symbol] | None:
    """Dimension of the target -> axis, where the store is plain and covers the target."""
    axes = dict(definition.axes)
    found: dict[int, Symbol] = {}
    for dimension, coordinate in enumerate(definition.store):
        constant = constant_value(coordinate)
        size = definition.target.shape[dimension]
        if constant is not None:
            if constant != 0 or constant_value(size) != 1:
                return None
            continue
        named = symbols(coordinate)
        symbol = next(iter(named))
        if len(named) != 1 or coordinate != as_expr(symbol) or symbol not in axes:
            return None
        if as_expr(axes[symbol]) != as_expr(size) or symbol in found.values():
            return None
        found[dimension] = symbol
    return found if len(found) == len(axes) else None


def _can_substitute(definition: Definition, load: Load) -> bool:
    store = _bare_store(definition) or {}
    gathered = {s for d, s in store.items() if not isinstance(load.coordinates[d], Expr)}
    if not gathered:
        return True
    plain = all(_is_plain(e, gathered) for e in _index_expressions(definition.body))
    return plain and not is_heavy(definition.body)


def _index_expressions(scalar: Scalar) -> Iterator[Expr]:
    for node in walk(scalar):
        if isinstance(node, Index):
            yield node.expr
        elif isinstance(node, Load):
            yield from (c for c in node.coordinates if isinstance(c, Expr))


def _is_plain(expr: Expr, gathered: set[Symbol]) -> bool:
    """Whether the expression is free of the symbols, or just one of them."""
    named = symbols(expr)
    return not named & gathered or expr in {as_expr(s) for s in gathered}


def _with_inlined(reader: Definition, definition: Definition) -> Definition:
    store = _bare_store(definition) or {}

    def rewrite(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if not children(node) and not isinstance(node, Load):
            return node
        found = replace_children(node, below)
        if isinstance(found, Load) and found.buffer is definition.target:
            return _substituted(definition.body, store, found)
        return found

    origin = with_inlined(reader.origin, [definition.origin])
    return replace(reader, body=rebuild(reader.body, rewrite), origin=origin)


def _substituted(body: Scalar, store: Mapping[int, Symbol], load: Load) -> Scalar:
    plain: dict[Symbol, Expr] = {}
    gathered: dict[Symbol, Scalar] = {}
    for dimension, symbol in store.items():
        coordinate = load.coordinates[dimension]
        if isinstance(coordinate, Expr):
            plain[symbol] = coordinate
        else:
            gathered[symbol] = coordinate
    # Fresh names: the reader's own symbols, which come in with `plain`, may be called the same.
    renamed = {s: Symbol(f"gathered_{s.name}", s.lower, s.upper) for s in gathered}
    plain.update({old: as_expr(new) for old, new in renamed.items()})
    body = substitute_symbols(body, plain)
    fresh = {renamed[s]: value for s, value in gathered.items()}
    return _with_gathered(body, fresh) if fresh else body


def _with_gathered(body: Scalar, gathered: Mapping[Symbol, Scalar]) -> Scalar:
    def place(coordinate: Expr) -> Expr | Scalar:
        named = symbols(coordinate)
        symbol = next(iter(named)) if len(named) == 1 else None
        if symbol is not None and symbol in gathered and coordinate == as_expr(symbol):
            return gathered[symbol]
        return coordinate

    def rewrite(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(node, Index):
            made = place(node.expr)
            return index(made) if isinstance(made, Expr) else made
        if isinstance(node, Load):
            return Load(
                node.buffer,
                tuple(place(c) if isinstance(c, Expr) else below(c) for c in node.coordinates),
            )
        return replace_children(node, below)

    return rebuild(body, rewrite)
