"""Symbolic sizes in `torch.fx` graphs: numbers that nodes compute from the sizes of inputs.

f32[s0, 3]                  size = l_x_.size(0)
slice(%0, 0, 0, s0 // 2)    floordiv = size // 2;  aten.slice(l_x_, 0, 0, floordiv)
u0, which is checked        ge = _local_scalar_dense >= 2;  aten._assert_scalar(ge, "...")
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any, final

from torch import fx

from braze.compat.torch.aten import aten
from braze.ir.graphs.graph import Graph, Node, computed_symbol
from braze.ir.graphs.run_graph import bindings_of
from braze.shapes.binding import Binding, SizeCheck
from braze.shapes.expr import Expr, Extremum, Mod, Symbol, as_expr, symbols

_COMPARED = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge}


@final
class SizeNodes:
    """The fx nodes of one graph's symbols, made as they are needed."""

    def __init__(self, graph: Graph, made: fx.Graph) -> None:
        self._sizes = graph.sizes
        self._graph = made
        self._symbols: dict[Symbol, Any] = {}
        self._checked: list[SizeCheck] = []
        self._made: list[fx.Node] = []

    def bind(self, graph: Graph, inputs: Sequence[fx.Node]) -> None:
        """Find every symbol that inputs say; `inputs` are their nodes, and those of numbers."""
        for binding in bindings_of(graph):
            place = None
            if binding.place is not None:
                number, suffix = binding.place
                place = self._found(inputs[number], suffix)
            self._bind(binding, place)
        self._check()

    def note(self, node: Node, made: fx.Node) -> None:
        """A node computed a number: what follows from it, and what has to hold of it."""
        symbol = computed_symbol(node)
        if symbol is None:
            return
        self._symbols[symbol] = made
        for binding in self._sizes.following(self._symbols.keys()):
            self._bind(binding, None)
        self._check()

    def number(self, size: Expr | Symbol) -> Any:
        """The node, or the number, of an expression."""
        terms = []
        for monomial, coefficient in as_expr(size).terms:
            factors = [*map(self._atom, monomial)]
            factors += [coefficient] if coefficient != 1 or not factors else []
            terms.append(functools.reduce(self._product, factors))
        return functools.reduce(self._sum, terms) if terms else 0

    def knows(self, size: Expr | Symbol) -> bool:
        """Whether every symbol of an expression has a node."""
        return symbols(as_expr(size)) <= self._symbols.keys()

    def drop_unused(self) -> None:
        """Take out what nobody asked for."""
        for node in reversed(self._made):
            if not node.users:
                self._graph.erase_node(node)

    def _call(self, function: Any, operands: tuple[Any, ...]) -> fx.Node:
        self._made.append(self._graph.call_function(function, operands))
        return self._made[-1]

    def _product(self, left: object, right: object) -> object:
        return self._call(operator.mul, (left, right))

    def _sum(self, left: object, right: object) -> object:
        return self._call(operator.add, (left, right))

    def _atom(self, atom: Any) -> object:
        if isinstance(atom, Symbol):
            return self._symbols[atom]
        if isinstance(atom, Extremum):
            operands = tuple([self.number(operand) for operand in atom.operands])
            return self._call(max if atom.maximum else min, operands)
        done = operator.mod if isinstance(atom, Mod) else operator.floordiv
        operands = (self.number(atom.dividend), self.number(atom.divisor))
        return self._call(done, operands)

    def _found(self, node: fx.Node, suffix: str) -> fx.Node:
        """The number at a place: `.size(0)` of an input, or the input itself."""
        if not suffix:
            return node
        method, _, dim = suffix.strip(".)").partition("(")
        self._made.append(self._graph.call_method(method, (node, int(dim))))
        return self._made[-1]

    def _bind(self, binding: Binding, place: object) -> None:
        rest = self.number(binding.rest)
        if place is None:
            value = rest
        else:
            value = place
            if rest != 0:
                value = self._call(operator.sub, (value, rest))
            if binding.factor != 1:
                value = self._call(operator.floordiv, (value, binding.factor))
        self._symbols[binding.symbol] = value

    def _check(self) -> None:
        for check in self._sizes.decided(self._symbols.keys(), self._checked):
            self._checked.append(check)
            holds = (self.number(check.expr), 0)
            made = self._graph.call_function(_COMPARED[check.kind], holds)
            asserted = aten._assert_scalar.default
            self._graph.call_function(asserted, (made, check.message))
