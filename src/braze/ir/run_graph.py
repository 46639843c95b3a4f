"""The reference executor: a graph run by PyTorch's own operators.

`run_graph` interprets; `compile_graph_runner` writes the same program as straight-line Python, for
use where eager kernels are the product (fallbacks, the aot_eager backend). Both are
differentiable: each node runs under the grad mode under which it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from braze.ir.graph import Alias, Argument, Graph, Node, Output, Value


def run_graph(graph: Graph, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The graph's outputs, in order; inputs that the graph mutates are written last.

    inputs: real tensors (or stand-ins) in the order of `graph.inputs`.
    """
    if len(inputs) != len(graph.inputs):
        raise ValueError(f"the graph has {len(graph.inputs)} inputs, got {len(inputs)}")
    values: dict[Value, Any] = dict(zip(graph.inputs, inputs))
    values.update((constant.value, constant.tensor) for constant in graph.constants)
    ambient = torch.is_grad_enabled()
    for node in graph.nodes:
        wanted = node.grad_enabled and ambient
        with torch.set_grad_enabled(wanted):
            results = flat_tensors(call_node(node, values))
        for value, result in zip(node.outputs, results, strict=True):
            if value is not None:
                values[value] = result
    owned = {o.value: values[o.value] for o in graph.outputs if o.alias is None}
    for mutation in graph.mutations:
        write_back(values[mutation.input], values[mutation.value])
    return [_output(output, values, owned) for output in graph.outputs]


def call_node(node: Node, values: dict[Value, Any]) -> Any:
    """Run one node; operators that write get clones, whose contents are returned last."""
    args = [_bind(argument, values) for argument in node.args]
    kwargs = {name: _bind(argument, values) for name, argument in node.kwargs}
    schema = node.op._schema
    written = [a.alias_info is not None and a.alias_info.is_write for a in schema.arguments]
    if not any(written):
        return node.op(*args, **kwargs)
    return _call_on_clones(node.op, written, args, kwargs)


def _call_on_clones(
    op: torch._ops.OpOverload, written: list[bool], args: list[Any], kwargs: dict[str, Any]
) -> list[Any]:
    clones: list[Any] = []
    for position, argument in enumerate(op._schema.arguments):
        if not written[position]:
            continue
        given = args[position] if position < len(args) else kwargs.get(argument.name)
        if given is None:
            continue
        clone = [t.clone() for t in given] if isinstance(given, list) else given.clone()
        clones.extend(clone if isinstance(clone, list) else [clone])
        if position < len(args):
            args[position] = clone
        else:
            kwargs[argument.name] = clone
    result = op(*args, **kwargs)
    if result is None:
        returned: tuple[Any, ...] = ()
    else:
        returned = tuple(result) if isinstance(result, (tuple, list)) else (result,)
    fresh = [
        value
        for value, described in zip(returned, op._schema.returns)
        if described.alias_info is None
    ]
    return [*fresh, *clones]


def flat_tensors(result: Any) -> list[Any]:
    """An operator's tensors, flattened in order; None stays for an undefined tensor."""
    if result is None or isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (tuple, list)):
        return [tensor for item in result for tensor in flat_tensors(item)]
    return []


def write_back(target: torch.Tensor, value: torch.Tensor) -> None:
    """Give a mutated input its new contents; under autograd as an in-place copy, except for a
    leaf that requires grad, which only an update without gradients can have written."""
    if target.is_leaf and target.requires_grad:
        with torch.no_grad():
            target.copy_(value)
    else:
        target.copy_(value)


def _bind(argument: Argument, values: dict[Value, Any]) -> Any:
    if type(argument) is Value:
        return values[argument]
    if isinstance(argument, (tuple, list)):
        return [_bind(a, values) for a in argument]
    return argument


def _output(output: Output, values: dict[Value, Any], owned: dict[Value, Any]) -> torch.Tensor:
    alias = output.alias
    if alias is None:
        return values[output.value]  # type: ignore[no-any-return]
    base = owned.get(alias.base, values.get(alias.base))
    return alias_of(base, alias)


def alias_of(base: torch.Tensor, alias: Alias) -> torch.Tensor:
    """The view that an alias describes."""
    shape, stride = tuple(alias.shape), tuple(alias.stride)
    return base.as_strided(shape, stride, base.storage_offset() + alias.offset)  # type: ignore[arg-type, operator]


GraphRunner = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]
