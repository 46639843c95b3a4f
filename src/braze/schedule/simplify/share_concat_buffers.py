"""Removes buffers whose regions all exist in a larger buffer.

    t[i, r] = a[i, r]                          u[i, r] = a[i, r]
    t[i, r + 64] = b[i, r]                     u[i, r + 64] = b[i, r]
    y = f(t[i, j])                    ->       y = f(u[i, j])
    u[i, r] = a[i, r]                          u[i, r + 96] = c[i, r]
    u[i, r + 64] = b[i, r]
    u[i, r + 96] = c[i, r]

A dense network joins what it has joined before with one piece more, at each layer: so each piece is
written once, and one buffer is in memory, not one a layer.

Refused: what an output, a mutation or a library call needs; regions that are not plain copies; a
larger buffer in another order of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from braze.ir.kernels.loops import Buffer, Definition, ExternCall, Load, Reduce, Scalar, Statement
from braze.ir.kernels.scalars import loads, rebuild, replace_children, substitute_symbols
from braze.schedule.analysis.uses import Uses
from braze.shapes.expr import Symbol, as_expr, constant_value
from braze.shapes.substitution import substitute

# What a region copies to where, whatever its symbols are called.
_Region: TypeAlias = tuple[object, ...]


def share_regions(statements: Sequence[Statement], uses: Uses) -> list[Statement]:
    """The statements without such buffers; the larger one's regions come where theirs were."""
    regions = _regions(statements)
    instead = _larger(regions, uses)
    if not instead:
        return list(statements)
    larger = {*instead.values()}
    written: set[Definition] = set()
    made: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Definition):
            target = instead.get(statement.target, statement.target)
            if target in larger:
                statement = regions[target][_key(statement)]
                if statement in written:
                    continue
                written.add(statement)
            statement = _reading(statement, instead)
        made.append(statement)
    return made


# --- private ---------------------------------------------------------------------------------


def _regions(statements: Sequence[Statement]) -> dict[Buffer, dict[_Region, Definition]]:
    """The regions of buffers that several definitions write, all of them plain copies."""
    found: dict[Buffer, list[Definition]] = {}
    for statement in statements:
        if not isinstance(statement, ExternCall):
            found.setdefault(statement.target, []).append(statement)
    several = {b: made for b, made in found.items() if len(made) > 1}
    return {
        buffer: {_key(d): d for d in made}
        for buffer, made in several.items()
        if all(isinstance(d.body, Load) for d in made)
    }


def _key(definition: Definition) -> _Region:
    renamed = {s: as_expr(Symbol(f"axis{n}")) for n, (s, _) in enumerate(definition.axes)}
    store = tuple([substitute(c, renamed) for c in definition.store])
    assert not isinstance(definition.body, Reduce)
    sizes = tuple([as_expr(size) for _, size in definition.axes])
    return store, sizes, substitute_symbols(definition.body, renamed)


def _larger(
    regions: Mapping[Buffer, Mapping[_Region, Definition]], uses: Uses
) -> dict[Buffer, Buffer]:
    """Which buffer a smaller one is read from."""
    kept: list[Buffer] = []
    found: dict[Buffer, Buffer] = {}
    for buffer in sorted(regions, key=lambda b: -len(regions[b])):
        larger = None
        if not uses.is_needed_outside(buffer):
            larger = next((b for b in kept if _lies_in(buffer, b, regions)), None)
        if larger is None:
            kept.append(buffer)
        else:
            found[buffer] = larger
    return found


def _lies_in(
    buffer: Buffer, larger: Buffer, regions: Mapping[Buffer, Mapping[_Region, Definition]]
) -> bool:
    if buffer.dtype != larger.dtype or buffer.device != larger.device:
        return False
    if not regions[buffer].keys() <= regions[larger].keys():
        return False
    if any(load.buffer is buffer for d in regions[larger].values() for load in loads(d.body)):
        return False
    return _order(buffer) is not None and _order(buffer) == _order(larger)


def _order(buffer: Buffer) -> list[int] | None:
    """The dimensions of more than one element, outermost in memory first; None: not known."""
    steps = [constant_value(step) for step in buffer.stride]
    moving = [d for d, size in enumerate(buffer.shape) if constant_value(size) != 1]
    if any(steps[d] is None for d in moving):
        return None
    return sorted(moving, key=lambda d: -(steps[d] or 0))


def _reading(definition: Definition, instead: Mapping[Buffer, Buffer]) -> Definition:
    def read(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        made = replace_children(node, below)
        if isinstance(made, Load) and made.buffer in instead:
            return Load(instead[made.buffer], made.coordinates)
        return made

    body = rebuild(definition.body, read)
    return definition if body is definition.body else replace(definition, body=body)
