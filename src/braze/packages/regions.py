"""Branches, loops and scans of a package: operators that run graphs, as data.

The graph of a region is a program of its own, written and read as the one around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from braze.errors import UserError
from braze.ir.generated_code import define
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.region import Program, RegionKind, RegionOp
from braze.ir.types import TensorType
from braze.shapes.binding import python_text
from braze.shapes.expr import Symbol, as_expr, symbols
from braze.shapes.linear import linear_in

# Those without gradients.
_KINDS = (RegionKind.COND, RegionKind.WHILE, RegionKind.CALL, RegionKind.SCAN)
# A graph as JSON, and the other way round.
WriteGraph: TypeAlias = Callable[[Graph], Mapping[str, Any]]
ReadGraph: TypeAlias = Callable[[Mapping[str, Any]], Program]


def not_yet_compiled(_: Sequence[object]) -> Sequence[torch.Tensor]:
    """Stands for the program of a region's graph, which is compiled where the region is written:
    a pass may leave the region out."""
    raise AssertionError("a graph that is packaged runs nothing")


def region_data(op: RegionOp, write: WriteGraph) -> dict[str, object]:
    """A region as JSON. Raises UserError for one that no package holds."""
    if op.kind not in _KINDS:
        raise UserError(f"braze.package: the graph holds {op}, and packages are for inference.")
    return {
        "kind": op.kind.value,
        "results": len(op.differentiable),
        "carried": op.carried,
        "rows": op.rows,
        "graphs": [{"strides": _strides_text(graph), **write(graph)} for graph in op.graphs],
    }


def read_region(data: Mapping[str, Any], read: ReadGraph) -> RegionOp:
    """The operator, which runs the programs of its graphs. Raises KeyError, ValueError."""
    kind = RegionKind(data["kind"])
    if kind not in _KINDS:
        raise ValueError(f"no package holds a region of the kind {kind.value}")
    programs = [_laid_out(str(each["strides"]), read(each)) for each in data["graphs"]]
    return RegionOp(
        kind,
        (),
        (False,) * int(data["results"]),
        _no_gradient,
        tuple(programs),
        carried=int(data["carried"]),
        rows=int(data["rows"]),
    )


# --- private -------------------------------------------------------------------------------------


def _no_gradient(op: RegionOp, *_: object) -> RegionOp:
    raise AssertionError(f"{op} of a package is for inference")


def _strides_text(graph: Graph) -> str:
    """The strides that the program of a graph needs its inputs in, as Python text over the inputs
    `x`; None for a number, and where they depend on more than sizes of inputs."""
    names: dict[Symbol, str] = {}
    for number, value in enumerate(graph.inputs):
        shape = value.type.shape if isinstance(value.type, TensorType) else ()
        for dim, size in enumerate(shape):
            found = linear_in(as_expr(size))
            if found is not None and found[1:] == (1, 0):
                names.setdefault(found[0], f"x[{number}].size({dim})")
    parts = []
    for value in graph.inputs:
        stride = value.type.stride if isinstance(value.type, TensorType) else None
        if stride is None or any(s not in names for step in stride for s in symbols(as_expr(step))):
            parts.append("None")
        else:
            texts = [python_text(as_expr(step), names) for step in stride]
            parts.append(f"({''.join([f'{text}, ' for text in texts])})")
    return f"[{', '.join(parts)}]"


def _laid_out(text: str, program: Program) -> Program:
    """The program, with its inputs in the strides that it was compiled for."""
    strides_of: Callable[[Sequence[Any]], list[Any]] = define(
        [f"def strides(x):\n    return {text}"], "<strides of a package>", {}
    )

    def run(inputs: Sequence[Any]) -> Sequence[torch.Tensor]:
        strides = strides_of(inputs)
        made = [
            tensor
            if stride is None or tensor.stride() == stride
            else tensor.new_empty_strided(tensor.shape, stride).copy_(tensor)
            for tensor, stride in zip(inputs, strides)
        ]
        return program([*made, *inputs[len(strides) :]])

    return run
