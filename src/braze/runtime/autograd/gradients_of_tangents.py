"""Gradients that lie in the memory of a gradient that came in.

    y = a + 1      the gradient of a is y's, the very tensor
    y = a.t() + b.t()    both are views of y's

A parameter takes the gradient that it is given, unless somebody else refers to the tensor: then the
engine copies it. A compiled backward returns new tensors, to which nobody refers, though the caller
has the memory. So the tensor that came in is handed on where it is the gradient, as in eager; and
where the backward made a copy of it, for its layout, gradients that are views of that copy are
apart: eager's would be views of what is expanded, each of which the engine copies.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch

from braze.frozen import frozen
from braze.ir.graphs.graph import Graph, Node, Value


@final
@frozen
class TangentGradients:
    """Of one tangent, by its place among those that the backward takes. number: of the result
    whose it is; whole: places of gradients that are the tangent; inside: of those that lie in its
    memory, all of them."""

    place: int
    number: int
    whole: frozenset[int]
    inside: tuple[int, ...]


@final
@frozen
class HandedOn:
    """What of a backward's gradients lies in the memory of its tangents. count: of these."""

    tangents: tuple[TangentGradients, ...]
    count: int

    @classmethod
    def of(cls, graph: Graph, tangents: Sequence[int], gradients: Sequence[int | None]) -> HandedOn:
        """Of a backward whose last inputs are the tangents. gradients: numbers of its outputs."""
        makers = {value: node for node in graph.nodes for value in node.outputs}
        values = [None if n is None else graph.outputs[n].value for n in gradients]
        roots = [None if value is None else _root(value, makers) for value in values]
        inputs = graph.inputs[len(graph.inputs) - len(tangents) :]
        found = []
        for place, (number, tangent) in enumerate(zip(tangents, inputs, strict=True)):
            whole = frozenset([n for n, value in enumerate(values) if value is tangent])
            inside = tuple([n for n, root in enumerate(roots) if root is tangent])
            if whole or len(inside) > 1:
                found.append(TangentGradients(place, number, whole, inside))
        return cls(tuple(found), len(tangents))

    def taken_by(self, held: Sequence[object]) -> Sequence[object]:
        """The tangents as the backward gets them, the last that it takes."""
        return held[len(held) - self.count :] if self.tangents else ()

    def settled(
        self,
        gradients: Sequence[torch.Tensor | None],
        places: Sequence[int],
        given: Sequence[Any],
        taken: Sequence[Any],
    ) -> tuple[torch.Tensor | None, ...]:
        """What is handed over for gradients with these places. given: tangents of all results."""
        if not self.tangents:
            return tuple(gradients)
        settled = list(gradients)
        for one in self.tangents:
            tangent, is_copy = given[one.number], taken[one.place] is not given[one.number]
            for number, place in enumerate(places):
                made = settled[number]
                if not is_copy and place in one.whole:
                    settled[number] = tangent
                elif is_copy and place in one.inside[1:] and made is not None:
                    settled[number] = made.clone()
        return tuple(settled)

    def settle_each(
        self,
        groups: Sequence[Sequence[int]],
        portions: Iterator[tuple[torch.Tensor | None, ...]],
        given: Sequence[object],
        taken: Sequence[object],
    ) -> Iterator[tuple[torch.Tensor | None, ...]]:
        """The same, group by group."""
        if not self.tangents:
            return portions
        # Nothing here may name a gradient while the engine has it: it would be copied.
        return (self.settled(next(portions), places, given, taken) for places in groups)


# --- private ---------------------------------------------------------------------------------


def _root(value: Value, makers: dict[Value | None, Node]) -> Value:
    """The value behind views."""
    while (node := makers.get(value)) is not None:
        aliases = [a.alias_info for a in node.op._schema.arguments if a.alias_info is not None]
        if not aliases or any(alias.is_write for alias in aliases):
            return value
        value = node.args[0]
    return value
