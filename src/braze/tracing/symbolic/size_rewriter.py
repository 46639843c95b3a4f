"""Replaces SymInts by plain expressions at the end of a trace, and back.

    %1: f32[<size s1>] = view(%0, [<size s1>])  ->  %1: f32[s0] = view(%0, [s0])

where the trace found out that s1 is s0. Symbols get the ranges that are known at the end. Symbols
that the graph needs and that no tensor among its inputs has the size of are passed as numbers,
after the tensors (`Graph.sizes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Set
from typing import Any, final

import torch

from braze.ir.graphs.graph import (
    Alias,
    Constant,
    Graph,
    Mutation,
    Node,
    Output,
    Value,
    ViewStep,
    computed_symbol,
)
from braze.ir.graphs.graph_sizes import bound_symbols, computed_symbols, missing_symbols, symbols_of
from braze.ir.graphs.region import RegionOp, is_region
from braze.ir.types import ScalarType, Size, TensorType
from braze.shapes.binding import SizeCheck, Sizes
from braze.shapes.expr import Expr, Symbol, as_expr, bounds, simplified, symbols
from braze.shapes.facts import Facts
from braze.shapes.substitution import renamed, substitute
from braze.shapes.symbolic import SymbolicSize, of_expression
from braze.shapes.unknowns import Unknown
from braze.tracing.graph_recorder import Call

_INT = frozenset((int,))
_NO_SIZES = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device))


class SizeRewriter:
    """Rewrites the sizes in the values and nodes of one graph; a value is rewritten once.

    size: gives what stands for a size that is no int; symbol: for that of a computed number.
    """

    def __init__(
        self, size: Callable[[Any], Any], symbol: Callable[[Symbol], Symbol] = lambda same: same
    ) -> None:
        self._size = size
        self._symbol = symbol
        self._values: dict[Value, Value] = {}
        self._types: dict[int, tuple[TensorType, TensorType]] = {}

    def size(self, size: Any) -> Any:
        """A size; whatever else is an argument stays."""
        return self._size(size)

    def sizes(self, sizes: Iterable[object]) -> tuple[Any, ...]:
        """Several sizes."""
        size = self._size
        return tuple([n if type(n) is int else size(n) for n in sizes])

    def type(self, type: Any) -> Any:
        """A tensor's type."""
        known = self._types.get(id(type))
        if known is not None:
            return known[1]
        made = type
        if isinstance(type, TensorType) and not _are_numbers((*type.shape, *type.stride)):
            # Not `tensor_type`: its cache would give symbols with another capture's hints.
            shape, stride = self.sizes(type.shape), self.sizes(type.stride)
            made = TensorType(type.dtype, shape, stride, type.device, type.requires_grad)
        elif isinstance(type, ScalarType) and type.symbol is not None:
            made = ScalarType(type.python_type, self._symbol(type.symbol))
        self._types[id(type)] = (type, made)
        return made

    def value(self, value: Value) -> Value:
        """The value that stands for another; itself where no size of it is symbolic."""
        found = self._values.get(value)
        if found is None:
            kind = value.type
            known = self._types.get(id(kind))
            made = self.type(kind) if known is None else known[1]
            found = value if made is kind else Value(value.index, made)
            self._values[value] = found
        return found

    def arguments(self, arguments: Iterable[Any]) -> list[Any]:
        """Arguments of a node."""
        values, made = self._values, []
        for argument in arguments:
            cls = type(argument)
            if cls is Value:
                argument = values.get(argument) or self.value(argument)
            elif cls is tuple or cls is list:
                argument = cls(self.arguments(argument))
            elif cls not in _NO_SIZES:
                argument = self._size(argument)
            made.append(argument)
        return made

    def call(self, call: Call) -> Node:
        """The node of a recorded call."""
        op, args, kwargs, outputs, origin, grad_enabled = call
        named = tuple(zip(kwargs, self.arguments(kwargs.values()))) if kwargs else ()
        made = tuple([None if value is None else self.value(value) for value in outputs])
        return Node(op, tuple(self.arguments(args)), named, made, origin, grad_enabled)

    def node(self, node: Node) -> Node:
        """One node."""
        kwargs = dict(node.kwargs)
        return self.call((node.op, node.args, kwargs, node.outputs, node.origin, node.grad_enabled))

    def rewritten(self, graph: Graph, calls: Iterable[Call] = ()) -> Graph:
        """The graph; what it is told of its symbols stays. calls: recorded, which come behind its
        nodes."""
        return Graph(
            tuple(map(self.value, graph.inputs)),
            tuple([Constant(self.value(c.value), c.tensor) for c in graph.constants]),
            (*map(self.node, graph.nodes), *map(self.call, calls)),
            tuple(map(self._output, graph.outputs)),
            tuple(map(self._mutation, graph.mutations)),
            graph.sizes,
            frozenset(map(self.value, graph.used_once)),
        )

    def _output(self, output: Output) -> Output:
        value, alias = self.value(output.value), self._alias(output.alias)
        return dataclasses.replace(output, value=value, alias=alias)

    def _mutation(self, mutation: Mutation) -> Mutation:
        target, value = self.value(mutation.input), self.value(mutation.value)
        return dataclasses.replace(mutation, input=target, value=value)

    def _alias(self, alias: Alias | None) -> Alias | None:
        if alias is None:
            return None
        shape, stride = self.sizes(alias.shape), self.sizes(alias.stride)
        steps = [ViewStep(step.op, tuple(self.arguments(step.args))) for step in alias.steps]
        base = self.value(alias.base)
        return Alias(base, shape, stride, self._size(alias.offset), tuple(steps))


def _had_symbols(graph: Graph) -> set[Symbol]:
    """The symbols that inputs and passed numbers give, that the graph computes, and that follow."""
    had = bound_symbols(graph.inputs, graph.sizes.numbers) | computed_symbols(graph)
    return had | {binding.symbol for binding in graph.sizes.following(had)}


@final
class Expressions(SizeRewriter):
    """From the symbolic sizes of a trace to expressions, as they are known at its end."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(self._expression, facts.final_symbol)
        self.facts = facts
        self._final = facts.refined()
        self._by_size: dict[Any, Size] = {}
        self._closed: dict[RegionOp, tuple[RegionOp, tuple[Expr, ...]]] = {}

    def graph(self, graph: Graph, calls: Iterable[Call]) -> tuple[Graph, tuple[Unknown, ...], bool]:
        """The graph of recorded calls, the unknowns whose numbers are `Graph.sizes`, and whether
        every symbol is had from them, from inputs or from what the graph computes. graph: all of it
        but the nodes."""
        made = self.rewritten(graph, calls)
        checks = self.checks(made.nodes)
        used = frozenset().union(
            *map(symbols, self._by_size.values()), *(symbols(check.expr) for check in checks)
        )
        missing, derived = missing_symbols(used, made.inputs, self.derived(used))
        passed = self._passed(missing)
        numbers = tuple([self.final(as_expr(unknown.symbol)) for unknown in passed])
        made = dataclasses.replace(made, sizes=Sizes(numbers, derived, checks))
        return made, passed, not missing or used <= _had_symbols(made)

    def of_data(self, graph: Graph) -> Graph:
        """A graph whose sizes are expressions already, as they are known at the end."""

        def known(size: object) -> Any:
            return simplified(self.final(size)) if type(size) is Expr else size

        return SizeRewriter(known, self.facts.final_symbol).rewritten(graph)

    def call(self, call: Call) -> Node:
        """The node of a recorded call; the graphs of a region get what they need of symbols."""
        node = super().call(call)
        op: Any = node.op
        if not (is_region(node) and op.is_open):
            return node
        op, numbers = self.closed(op)
        return dataclasses.replace(node, op=op, args=(node.args[0], numbers))

    def closed(self, op: RegionOp) -> tuple[RegionOp, tuple[Expr, ...]]:
        """The operator of a region whose sizes were those of the trace, and the numbers that its
        graphs are told."""
        if op not in self._closed:
            graphs = tuple(map(self.rewritten, op.graphs))
            wanted = set[Symbol]().union(*map(symbols_of, graphs))
            numbers = tuple([as_expr(symbol) for symbol in sorted(wanted, key=str)])
            graphs = tuple([dataclasses.replace(g, sizes=Sizes(numbers)) for g in graphs])
            made = dataclasses.replace(op, graphs=graphs, is_open=False, gradients={}, runners=[])
            self._closed[op] = made, numbers
        return self._closed[op]

    def checks(self, nodes: Iterable[Node]) -> tuple[SizeCheck, ...]:
        """What has to hold of numbers that the graph computes: what was assumed, and that sizes
        made of them are not negative."""
        data = self.facts.data
        if data is None:
            return ()
        found = list(data.refined_checks(self._final))
        checked = {check.expr for check in found}
        for node in nodes:
            for size in _sizes_of(node):
                low, _ = bounds(size)
                if (low is None or low < 0) and size not in checked:
                    checked.add(size)
                    found.append(SizeCheck(size, ">=", f"{node.origin}: a negative size, {size}"))
        return tuple(found)

    def derived(self, used: Set[Symbol]) -> tuple[tuple[Symbol, Expr], ...]:
        """Those of the used symbols that follow from inputs' symbols, and how."""
        found = []
        for symbol, meaning in self.facts.derived():
            here = self._final[symbol]
            if isinstance(here, Symbol) and here in used:
                expr = self.final(meaning)
                if here not in symbols(expr):
                    found.append((here, expr))
        return tuple(found)

    def symbols(self) -> list[tuple[Symbol, Expr]]:
        """Every symbol that is left, and what it is in terms of inputs' symbols."""
        facts = self.facts
        return [
            (final, facts.in_inputs(as_expr(symbol)))
            for symbol, final in self._final.items()
            if symbol not in facts.written
            and isinstance(final, Symbol)
            and (facts.data is None or symbol not in facts.data.order)
        ]

    def final(self, expr: Expr) -> Expr:
        """An expression of the trace as it is known at the end."""
        expr = self.facts.current(expr)
        made = renamed(expr, self._final)
        return substitute(expr, self._final) if made is None else made

    def _expression(self, size: Any) -> object:
        if type(size) is not SymbolicSize:
            if not isinstance(size, SymbolicSize):
                return size
            size = size.node  # what programs have hashes by its number
        found = self._by_size.get(size)
        if found is None:
            found = self._by_size[size] = simplified(self.final(size.expr))
        return found

    def _passed(self, missing: set[Symbol]) -> tuple[Unknown, ...]:
        found: list[Unknown] = []
        for unknown in self.facts.unknowns.values():
            named = symbols(self.final(as_expr(unknown.symbol)))
            if len(named) == 1 and named <= missing:
                missing = missing - named
                found.append(unknown)
        return tuple(found)


def retraced(graph: Graph) -> tuple[Graph, Facts]:
    """A graph made ready for another trace: its symbolic sizes answer again, from what is known of
    its symbols."""
    facts = Facts()
    derived = dict(graph.sizes.derived)
    used = symbols_of(graph) | bound_symbols(graph.inputs) | graph.sizes.symbols()
    computed = [s for s in map(computed_symbol, graph.nodes) if s is not None]
    for symbol in sorted(used - derived.keys() - set(computed), key=str):
        facts.wrap_value(symbol)
    if computed:
        facts.data_symbols().wrap_value(computed, graph.sizes.checks)
    for symbol, expr in derived.items():
        facts.wrap_value(symbol, expr)

    def live(size: object) -> object:
        return of_expression(facts, size) if type(size) is Expr else size

    return SizeRewriter(live).rewritten(graph), facts


def _sizes_of(node: Node) -> Iterable[Expr]:
    for value in node.outputs:
        if value is not None and isinstance(value.type, TensorType):
            yield from (size for size in value.type.shape if type(size) is Expr)


def _are_numbers(sizes: tuple[object, ...]) -> bool:
    return _INT.issuperset(map(type, sizes))
