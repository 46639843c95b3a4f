"""Rematerializes values of a row in each phase that reads them, instead of storing them.

    phase r: e = exp(x - top); s = sum of e          phase r: s = sum of exp(x - top)
    phase r: y = e / s                         ->    phase r: y = exp(x - top) / s

Where registers hold the row, it is one computation; where they do not, reading x again is cheaper
than writing e and reading it. Left as they are: values that others need, and values that are read
at another point of the row, which go through memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from braze.ir.kernels.loops import Buffer, Load, Scalar
from braze.ir.kernels.scalars import loads, rebuild, replace_children
from braze.schedule.fusion.fuse import FULL, FusionGroup, Member


def compute_again(group: FusionGroup, needed: set[Buffer]) -> FusionGroup:
    """The group without the members that their readers compute."""
    if group.outer is None:
        return group
    bodies: dict[Buffer, Scalar] = {}
    kept: list[Member] = []
    for member in group.members:
        member = _with_bodies(member, bodies)
        target = member.definition.target
        if member.kind == FULL and target not in needed and _is_read_in_place(group, member):
            bodies[target] = member.body
        else:
            kept.append(member)
    made = FusionGroup(group.space, group.outer)
    for member in kept:
        made.add(member)
    return made


# --- private ---------------------------------------------------------------------------------


def _is_read_in_place(group: FusionGroup, maker: Member) -> bool:
    target = maker.definition.target
    return all(
        load.coordinates == maker.store
        for member in group.members
        for load in member.reads
        if load.buffer is target
    )


def _with_bodies(member: Member, bodies: dict[Buffer, Scalar]) -> Member:
    if not any(load.buffer in bodies for load in member.reads):
        return member

    def replaced(node: Scalar, below: Callable[[Scalar], Scalar]) -> Scalar:
        if isinstance(node, Load) and node.buffer in bodies:
            return bodies[node.buffer]
        return replace_children(node, below)

    body = rebuild(member.body, replaced)
    return replace(member, body=body, reads=tuple(loads(body)))
