"""Inputs of a graph made from its types alone, for scripts that carry no data of the program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from braze.ir.graphs.graph import Graph
from braze.ir.types import ScalarType, Size, TensorType
from braze.shapes.expr import Symbol, as_expr, symbols
from braze.shapes.substitution import evaluate

_SIZE = 8  # of a symbol that allows it


def generated_inputs(graph: Graph) -> list[object]:
    """Tensors with the shapes, strides and dtypes of the graph's inputs; whole numbers are 0 and 1,
    which index everything. Symbols are 8, or the least that they may be."""
    made: list[Any] = []
    for value in graph.inputs:
        kind = value.type
        made.append(kind.python_type(1) if isinstance(kind, ScalarType) else _tensor(kind))
    return [*made, *map(number_of, graph.sizes.numbers)]


def number_of(size: Size) -> int:
    """A size with numbers for its symbols."""
    return evaluate(as_expr(size), {symbol: _number(symbol) for symbol in symbols(size)})


def filled(shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of random numbers."""
    made = torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype, device="cpu")
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return made.copy_(torch.randn(tuple(shape), dtype=wide, device="cpu"))
    return made.copy_(torch.randint(0, 2, tuple(shape), device="cpu"))


# --- private ---------------------------------------------------------------------------------


def _number(symbol: Symbol) -> int:
    least = symbol.lower if symbol.lower is not None else 0
    most = symbol.upper if symbol.upper is not None else max(least, _SIZE)
    return min(max(least, _SIZE), most)


def _tensor(kind: TensorType) -> torch.Tensor:
    shape, stride = ([number_of(n) for n in sizes] for sizes in (kind.shape, kind.stride))
    return filled(shape, stride, kind.dtype).to(kind.device)
