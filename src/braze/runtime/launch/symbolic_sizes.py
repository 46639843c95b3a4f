"""The numbers of a graph's symbols while it runs: read from its inputs, then put into sizes.

inputs f32[s0, 2*s1]          ->  lambda inputs: (inputs[0].size(0), inputs[0].size(1) // 2)
strides (s1, 1), (s0 + 1,)    ->  lambda n_s0, n_s1: ((n_s1, 1), (n_s0 + 1,))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from braze.frozen import frozen
from braze.ir.generated_code import define
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.run_graph import bindings_of
from braze.shapes.binding import Binding, python_text
from braze.shapes.expr import Expr, Symbol


@final
@frozen
class SizeReader:
    """symbols: of a graph; read: their numbers, in this order, from the graph's inputs and from
    tensors that hold what it computed."""

    symbols: tuple[Symbol, ...]
    read: Callable[[Sequence[Any], Sequence[Any]], tuple[int, ...]]


def compile_reader(graph: Graph, computed: Sequence[Symbol] = ()) -> SizeReader:
    """What reads the symbols of a graph that its inputs bind, and those that it computes."""
    names: dict[Symbol, str] = {}
    lines = ["def read(inputs, computed):"]

    def bind(binding: Binding) -> None:
        number, suffix = binding.place or (0, "")
        text = binding.text(f"inputs[{number}]{suffix}", names)
        name = names[binding.symbol] = f"n_{binding.symbol.name}"
        lines.append(f"    {name} = {text}")

    for binding in bindings_of(graph):
        bind(binding)
    for place, symbol in enumerate(computed):
        name = names[symbol] = f"n_{symbol.name}"
        lines.append(f"    {name} = computed[{place}].item()")
    for binding in graph.sizes.following(names.keys()):
        bind(binding)
    lines.append(f"    return ({', '.join(names.values())}{',' if names else ''})")
    return SizeReader(tuple(names), _compiled("\n".join(lines)))


def compile_sizes(symbols: Sequence[Symbol], sizes: object) -> Callable[[Sequence[int]], Any]:
    """What gives the sizes (ints and expressions, in nested tuples) their numbers."""
    return _compiled(sizes_text(symbols, sizes))


def sizes_text(symbols: Sequence[Symbol], sizes: object) -> str:
    """The same, as the text of a function."""
    names = {symbol: f"n_{symbol.name}" for symbol in symbols}
    arguments = f"({', '.join(names.values())},) = numbers" if names else "pass"
    return f"def fill(numbers):\n    {arguments}\n    return {_text(sizes, names)}"


# --- private -------------------------------------------------------------------------------------


def _text(sizes: object, names: dict[Symbol, str]) -> str:
    if isinstance(sizes, tuple):
        return f"({''.join(f'{_text(size, names)}, ' for size in sizes)})"
    return python_text(sizes, names) if type(sizes) is Expr else repr(sizes)


def _compiled(text: str) -> Callable[..., Any]:
    function: Callable[..., Any] = define([text], "<sizes of a graph>", {})
    return function
