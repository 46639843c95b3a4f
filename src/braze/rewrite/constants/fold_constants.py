"""Evaluates what depends on frozen parameters and buffers alone, once (`options={"freeze": True}`).

    constant %w: f32[8, 4], %g: f32[8]            constant %w: f32[8, 4], %4: f32[8, 4]
    %2 = mul(%w, %g)                         ->   %3 = mm(%x, t(%4))
    %3 = mm(%x, t(%2))

Each is computed by the program's own operators, so that it has eager's bits: weight norms, casts of
weights, rows of positional tables. Views stay: they cost nothing, and kernels read through them.
Left alone: what reads no constant of the program's (a mask costs less to compute than to read), is
much larger than what it is made of, draws random numbers, has effects, symbolic sizes, or several
devices; what raises, so that it raises in each call.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import torch

from braze.compat.torch.grad_mode import without_autocast
from braze.ir.graphs.graph import Constant, Graph, Node, Value, devices_of, operands
from braze.ir.graphs.op_effects import has_effects
from braze.ir.graphs.run_graph import call_node, flat_tensors
from braze.ir.types import TensorType
from braze.rewrite.editing import escaping_values, is_view, present, readers_of

# What is known of values -> whether a node that reads known values alone is evaluated.
IsWanted: TypeAlias = Callable[[Node, Collection[Value]], bool]

_MOST_GROWTH = 4  # times what a result is made of
_ALWAYS = 1 << 16  # bytes that a result may have


def fold_constants(graph: Graph) -> Graph:
    """The graph with constants in the place of what constants alone decide."""
    if not graph.constants or len(devices_of(graph)) > 1:
        return graph
    known = {constant.value: constant.tensor for constant in graph.constants}
    frozen = {value for value, tensor in known.items() if tensor.dim()}

    def is_wanted(node: Node, made: Collection[Value]) -> bool:
        read = operands(node)
        if not read and not _is_small(node):
            return False
        return is_view(node.op) or _fits(node, sum(map(bytes_of, read)))

    values = evaluate(graph, known, is_wanted)
    made: dict[Value, torch.Tensor] = {}
    for node in graph.nodes:
        if any(each in frozen or each in made for each in operands(node)):
            made.update((v, values[v]) for v in present(node.outputs) if v in values)
    return with_constants(graph, made)


def with_constants(graph: Graph, made: dict[Value, torch.Tensor]) -> Graph:
    """The graph with constants in the place of nodes whose results are known. made: those; what
    the caller gets leaves it."""
    readers, seen = readers_of(graph), escaping_values(graph)
    for node in graph.nodes:  # what the caller gets is a new one in each call
        if any(value in seen for value in node.outputs):
            for value in present(node.outputs):
                made.pop(value, None)
    gone = {node for node in graph.nodes if _is_folded(node, made) and not is_view(node.op)}
    if not gone:
        return graph
    folded = [v for n in graph.nodes if n in gone for v in n.outputs if v is not None]
    written = {mutation.value for mutation in graph.mutations}
    read = [v for v in folded if v in written or _is_read(v, readers, made)]
    constants = [Constant(value, _kept(made[value])) for value in read]
    nodes = [node for node in graph.nodes if node not in gone]
    return without_unread(
        replace(graph, nodes=tuple(nodes), constants=(*graph.constants, *constants))
    )


def without_unread(graph: Graph) -> Graph:
    """The graph without views, and constants, that nobody reads."""
    read = {output.value for output in graph.outputs} | {m.value for m in graph.mutations}
    read |= {output.alias.base for output in graph.outputs if output.alias is not None}
    kept = []
    for node in reversed(graph.nodes):
        if is_view(node.op) and not any(value in read for value in present(node.outputs)):
            continue
        kept.append(node)
        read.update(operands(node))
    constants = [constant for constant in graph.constants if constant.value in read]
    return replace(graph, nodes=tuple(reversed(kept)), constants=tuple(constants))


def evaluate(
    graph: Graph, known: Mapping[Value, torch.Tensor], is_wanted: IsWanted
) -> dict[Value, torch.Tensor]:
    """The contents of values that known ones decide, and known ones. Left out: what has effects,
    draws random numbers, has symbolic sizes, or raises."""
    values: dict[Value, Any] = dict(known)
    for node in graph.nodes:
        if has_effects(node.op) or not _is_static(node):
            continue
        if not all(value in values for value in operands(node)) or not is_wanted(node, values):
            continue
        try:
            with torch.no_grad(), without_autocast():
                results = flat_tensors(call_node(node, values))
        except (RuntimeError, ValueError, IndexError, NotImplementedError):
            continue
        for value, result in zip(node.outputs, results, strict=True):
            if value is not None and _is_as_typed(value, result):
                values[value] = result
    return values


def bytes_of(value: Value) -> int:
    """Bytes of a tensor's elements; 0 where sizes are symbols."""
    kind: Any = value.type
    if not isinstance(kind, TensorType):
        return 0
    size: Any = kind.dtype.itemsize
    for extent in kind.shape:
        size *= extent
    return size if type(size) is int else 0


# --- private ---------------------------------------------------------------------------------


def _is_read(
    value: Value, readers: dict[Value, list[Node]], made: dict[Value, torch.Tensor]
) -> bool:
    """Whether a value is read, perhaps through views, by what is computed in each call."""
    for node in readers.get(value, []):
        if not _is_folded(node, made):
            return True
        if is_view(node.op) and any(_is_read(v, readers, made) for v in present(node.outputs)):
            return True
    return False


def _is_folded(node: Node, made: dict[Value, torch.Tensor]) -> bool:
    results = list(present(node.outputs))
    return bool(results) and all(value in made for value in results)


def _is_static(node: Node) -> bool:
    kinds = [value.type for value in present(node.outputs)]
    return bool(kinds) and all(
        isinstance(kind, TensorType)
        and all(type(size) is int for size in (*kind.shape, *kind.stride))
        for kind in kinds
    )


def _is_small(node: Node) -> bool:
    return sum(map(bytes_of, present(node.outputs))) <= _ALWAYS


def _fits(node: Node, size: int) -> bool:
    made = sum(map(bytes_of, present(node.outputs)))
    return made <= max(_ALWAYS, _MOST_GROWTH * size)


def _is_as_typed(value: Value, tensor: object) -> bool:
    """Whether the operator gave what the graph says, strides among it."""
    kind: Any = value.type
    return isinstance(tensor, torch.Tensor) and (
        (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.device)
        == (kind.dtype, kind.shape, kind.stride, kind.device)
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg())
    )


def _kept(tensor: torch.Tensor) -> torch.Tensor:
    """The contents alone, where they are a part of something larger."""
    if tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size():
        return tensor
    made = torch.empty_strided(
        tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return made.copy_(tensor)
