"""Which symbols a graph uses, which of them its inputs' sizes give, and which it has to be told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Any

from braze.ir.graphs.graph import Graph, Value, computed_symbol
from braze.ir.types import TensorType
from braze.shapes.binding import Sizes, bind_symbols
from braze.shapes.expr import Expr, IntLike, Symbol, as_expr, symbols


def symbols_of(graph: Graph) -> set[Symbol]:
    """Every symbol in types, arguments and aliases."""
    types: dict[int, Any] = {id(value.type): value.type for value in graph.inputs}
    sizes: dict[int, Expr] = {}  # by identity, as types: most are met many times
    for node in graph.nodes:
        _note_sizes(node.args, sizes)
        for _, argument in node.kwargs:
            _note_sizes((argument,), sizes)
        for made in node.outputs:
            if made is not None:
                types[id(made.type)] = made.type
    for output in graph.outputs:
        if output.alias is not None:
            alias = output.alias
            _note_sizes((*alias.shape, *alias.stride, alias.offset), sizes)
            _note_sizes([step.args for step in alias.steps], sizes)
    for type in types.values():
        if isinstance(type, TensorType):
            _note_sizes((*type.shape, *type.stride), sizes)
    return set().union(*map(symbols, sizes.values()))


def bound_symbols(inputs: Iterable[Value], passed: Iterable[Expr] = ()) -> set[Symbol]:
    """The symbols that the sizes and strides of inputs give, and numbers that are passed."""
    numbers: list[tuple[None, IntLike]] = [
        (None, size)
        for value in inputs
        if isinstance(value.type, TensorType)
        for size in (*value.type.shape, *value.type.stride)
        if type(size) is not int
    ]
    numbers += [(None, number) for number in passed]
    return {binding.symbol for binding in bind_symbols(numbers)}


Derived = tuple[tuple[Symbol, Expr], ...]


def computed_symbols(graph: Graph) -> set[Symbol]:
    """The symbols of numbers that the graph's nodes compute."""
    return {symbol for node in graph.nodes if (symbol := computed_symbol(node)) is not None}


def missing_symbols(
    wanted: Set[Symbol], inputs: Iterable[Value], derived: Derived
) -> tuple[set[Symbol], Derived]:
    """(symbols that the inputs do not give, those of `derived` that follow from others).

    derived: (symbol, what it is in terms of symbols before it), in order.
    """
    bound = bound_symbols(inputs)
    missing = set(wanted - bound)
    used: list[tuple[Symbol, Expr]] = []
    for symbol, expr in reversed(derived):
        if symbol in missing:
            used.insert(0, (symbol, expr))
            missing = (missing - {symbol}) | (symbols(expr) - bound)
    return missing, tuple(used)


def told_sizes(graph: Graph, derived: Derived) -> Sizes:
    """`Graph.sizes` of a graph whose caller knows every symbol: those that it misses, by name."""
    missing, used = missing_symbols(symbols_of(graph), graph.inputs, derived)
    missing -= computed_symbols(graph)
    return Sizes(tuple([as_expr(s) for s in sorted(missing, key=str)]), used)


# --- private -------------------------------------------------------------------------------------


def _note_sizes(arguments: Sequence[object], found: dict[int, Expr]) -> None:
    for argument in arguments:
        if type(argument) is Expr:
            found[id(argument)] = argument
        elif isinstance(argument, (tuple, list)):
            _note_sizes(argument, found)
