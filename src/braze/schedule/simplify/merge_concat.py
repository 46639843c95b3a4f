"""Joins the regions of a buffer into one definition that selects among them.

    t[i, r0] = a[i, r0]          with r0 < 64           t[i, c] = a[i, c] where c < 64,
    t[i, r0 + 64] = b[i, r0]     with r0 < 32     ->              else b[i, c - 64]

which is then computed where it is read: joining costs a condition, not a copy. Regions must lie
one behind the other along one dimension and have known sizes there; reductions are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from braze.frozen import frozen
from braze.ir.kernels.loops import Buffer, Definition, Guarded, Reduce, Scalar, Scatter, Statement
from braze.ir.kernels.scalars import apply, index, substitute_symbols
from braze.ir.origin import with_inlined
from braze.ir.types import Size
from braze.schedule.analysis.uses import Uses
from braze.schedule.simplify.normalize import Names
from braze.shapes.expr import ZERO, Symbol, as_expr, constant_value

_MOST_REGIONS = 4


@frozen
class _Region:
    """A definition of the elements [start, stop) along the dimension; bare: its symbol there."""

    definition: Definition
    start: int
    stop: int


def join_regions(statements: Sequence[Statement], uses: Uses, names: Names) -> list[Statement]:
    """The statements with such buffers defined once, where the last of their regions was."""
    regions: dict[Buffer, list[Definition]] = {}
    for statement in statements:
        if isinstance(statement, Definition):
            regions.setdefault(statement.target, []).append(statement)
    joined: dict[Definition, Definition] = {}
    dropped: set[Definition] = set()
    for target, definitions in regions.items():
        if not 1 < len(definitions) <= _MOST_REGIONS or uses.is_needed_outside(target):
            continue
        whole = _joined(target, definitions, names)
        if whole is not None:
            joined[definitions[-1]] = whole
            dropped |= {*definitions[:-1]}
    made: list[Statement] = []
    for statement in statements:
        if not isinstance(statement, Definition):
            made.append(statement)
        elif statement not in dropped:
            made.append(joined.get(statement, statement))
    return made


# --- private ---------------------------------------------------------------------------------


def _joined(target: Buffer, definitions: Sequence[Definition], names: Names) -> Definition | None:
    for dimension in range(len(target.shape)):
        regions = [_region(definition, dimension) for definition in definitions]
        if all(region is not None for region in regions):
            found = sorted([r for r in regions if r is not None], key=lambda r: r.start)
            if _is_whole(found, target, dimension):
                return _choice(target, found, dimension, names)
    return None


def _is_whole(regions: Sequence[_Region], target: Buffer, dimension: int) -> bool:
    ends = [0, *(region.stop for region in regions)]
    behind = all(region.start == end for region, end in zip(regions, ends))
    return behind and constant_value(target.shape[dimension]) == ends[-1]


def _region(definition: Definition, dimension: int) -> _Region | None:
    """Where the definition lies, if it stores at its own symbols, one of them moved."""
    if isinstance(definition.body, (Reduce, Scatter)):
        return None
    sizes = dict(definition.axes)
    used: set[Symbol] = set()
    for place, (coordinate, whole) in enumerate(zip(definition.store, definition.target.shape)):
        moved = as_expr(coordinate)
        start = sum(c for monomial, c in moved.terms if not monomial)
        rest = moved - start
        symbol = next((s for s in sizes if as_expr(s) == rest), None)
        length = 1 if rest == ZERO else constant_value(sizes[symbol]) if symbol else None
        if symbol is not None:
            used.add(symbol)
        if place == dimension:
            if length is None or start < 0:
                return None
            found = _Region(definition, start, start + length)
        elif start or not _covers(symbol, sizes, whole):
            return None
    return found if used == {*sizes} else None


def _covers(symbol: Symbol | None, sizes: Mapping[Symbol, Size], whole: Size) -> bool:
    if symbol is None:
        return constant_value(whole) == 1
    return as_expr(sizes[symbol]) == as_expr(whole)


def _choice(target: Buffer, regions: Sequence[_Region], dimension: int, names: Names) -> Definition:
    axes = tuple([(names.symbol("j", size), size) for size in target.shape])
    at = [as_expr(symbol) for symbol, _ in axes]
    body: Scalar | None = None
    for region in reversed(regions):
        inside = [c - region.start if n == dimension else c for n, c in enumerate(at)]
        own = {}
        for coordinate, place in zip(region.definition.store, inside):
            for symbol, _ in region.definition.axes:
                if symbol in {a for monomial, _ in as_expr(coordinate).terms for a in monomial}:
                    own[symbol] = place
        value = substitute_symbols(region.definition.body, own)
        if body is None:
            body = value
        else:
            before = apply("lt", index(at[dimension]), index(as_expr(region.stop)))
            body = Guarded(before, value, body)
    assert body is not None
    last = regions[-1].definition
    origin = with_inlined(last.origin, [region.definition.origin for region in regions])
    return Definition(target, axes, tuple(at), body, origin)
