"""The end of a trace with symbolic sizes: its graph as data, every size an expression.

    %1: f32[<size s1>] = view(%0, [<size s1>])  ->  %1: f32[s0] = view(%0, [s0])

where the trace found out that s1 is s0. Symbols get the ranges that are known at the end. Symbols
that the graph needs and that no tensor among its inputs has the size of are passed as numbers,
after the tensors (`Graph.sizes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, final

from braze.ir.graph import Alias, Constant, Graph, Mutation, Node, Output, Value
from braze.ir.types import Size, TensorType
from braze.shapes.binding import Sizes, bind_symbols
from braze.shapes.expr import Expr, Symbol, as_expr, simplified, substitute, symbols
from braze.shapes.facts import Facts, Unknown
from braze.shapes.symbolic import SymbolicSize
from braze.standins.layout import tensor_type


@final
class Expressions:
    """Rewrites the values and nodes of one trace; a value is rewritten once."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._final = facts.refined()
        self._sizes: dict[Expr, Size] = {}
        self._values: dict[Value, Value] = {}
        self._types: dict[int, tuple[TensorType, TensorType]] = {}

    def size(self, size: Any) -> Size:
        """A size as an int or an expression."""
        if not isinstance(size, SymbolicSize):
            return size  # type: ignore[no-any-return]
        found = self._sizes.get(size.expr)
        if found is None:
            current = self.facts.current(size.expr)
            found = self._sizes[size.expr] = simplified(substitute(current, self._final))
        return found

    def sizes(self, sizes: Iterable[Any]) -> tuple[Size, ...]:
        """Several sizes."""
        return tuple(map(self.size, sizes))

    def type(self, type: Any) -> Any:
        """A tensor's type."""
        known = self._types.get(id(type))
        if known is not None:
            return known[1]
        made = type
        if isinstance(type, TensorType) and any(
            isinstance(size, SymbolicSize) for size in (*type.shape, *type.stride)
        ):
            shape, stride = self.sizes(type.shape), self.sizes(type.stride)
            made = tensor_type(type.dtype, shape, stride, type.device)  # type: ignore[arg-type]
            if type.requires_grad:
                made = dataclasses.replace(made, requires_grad=True)
        self._types[id(type)] = (type, made)
        return made

    def value(self, value: Value) -> Value:
        """The value that stands for another; itself where no size of it is symbolic."""
        found = self._values.get(value)
        if found is None:
            made = self.type(value.type)
            found = value if made is value.type else Value(value.index, made)
            self._values[value] = found
        return found

    def argument(self, argument: Any) -> Any:
        """An argument of a node."""
        cls = type(argument)
        if cls is Value:
            return self.value(argument)
        if cls is tuple or cls is list:
            return cls([self.argument(item) for item in argument])
        return self.size(argument)

    def node(self, node: Node) -> Node:
        """One node."""
        return Node(
            node.op,
            tuple(map(self.argument, node.args)),
            tuple([(name, self.argument(value)) for name, value in node.kwargs]),
            tuple([None if v is None else self.value(v) for v in node.outputs]),
            node.origin,
            node.grad_enabled,
        )

    def graph(self, graph: Graph) -> tuple[Graph, tuple[Unknown, ...]]:
        """The graph, and the unknowns whose numbers are `Graph.sizes`."""
        made = Graph(
            tuple(map(self.value, graph.inputs)),
            tuple([Constant(self.value(c.value), c.tensor) for c in graph.constants]),
            tuple(map(self.node, graph.nodes)),
            tuple(map(self._output, graph.outputs)),
            tuple(map(self._mutation, graph.mutations)),
        )
        missing = _symbols_of(made) - _bound(made.inputs)
        derived: list[tuple[Symbol, Expr]] = []
        for symbol, meaning in reversed(self.facts.derived()):
            final = as_expr(self._final[symbol])
            (here,) = symbols(final)
            expr = substitute(self.facts.current(meaning), self._final)
            if here in missing and here not in symbols(expr):
                derived.insert(0, (here, expr))
                missing = (missing - {here}) | (symbols(expr) - _bound(made.inputs))
        passed = self._passed(missing)
        numbers = tuple([self._final_of(unknown) for unknown in passed])
        return dataclasses.replace(made, sizes=Sizes(numbers, tuple(derived))), passed

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
        return Alias(self.value(alias.base), shape, stride, self.size(alias.offset))

    def _final_of(self, unknown: Unknown) -> Expr:
        return substitute(self.facts.current(as_expr(unknown.symbol)), self._final)

    def _passed(self, missing: set[Symbol]) -> tuple[Unknown, ...]:
        found: list[Unknown] = []
        for unknown in self.facts.unknowns.values():
            named = symbols(self._final_of(unknown))
            if len(named) == 1 and named <= missing:
                missing = missing - named
                found.append(unknown)
        return tuple(found)


def _symbols_of(graph: Graph) -> set[Symbol]:
    found: set[Symbol] = set()
    for value in graph.inputs:
        found |= _in_type(value.type)
    for node in graph.nodes:
        _note_symbols((node.args, tuple(v for _, v in node.kwargs)), found)
        for value in node.outputs:
            if value is not None:
                found |= _in_type(value.type)
    for output in graph.outputs:
        if output.alias is not None:
            alias = output.alias
            _note_symbols((*alias.shape, *alias.stride, alias.offset), found)
    return found


def _in_type(type: Any) -> set[Symbol]:
    found: set[Symbol] = set()
    if isinstance(type, TensorType):
        _note_symbols((*type.shape, *type.stride), found)
    return found


def _note_symbols(arguments: Sequence[Any], found: set[Symbol]) -> None:
    for argument in arguments:
        if type(argument) is Expr:
            found |= symbols(argument)
        elif isinstance(argument, (tuple, list)):
            _note_symbols(argument, found)


def _bound(inputs: Sequence[Value]) -> set[Symbol]:
    """The symbols that the sizes and strides of the inputs give."""
    numbers = [
        (None, size)
        for value in inputs
        if isinstance(value.type, TensorType)
        for size in (*value.type.shape, *value.type.stride)
    ]
    return {binding.symbol for binding in bind_symbols(numbers)}
