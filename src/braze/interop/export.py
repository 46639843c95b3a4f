"""`braze.export`: a captured graph as a module that is called as the program was.

    gm = export(f)(x, {"scale": s}).graph_module
    gm(x, {"scale": s})          # what f(x, {"scale": s}) returned, computed by the graph alone

Its placeholders are the leaves of the arguments; parameters and other tensors that the program
reached by itself are attributes of the module. Guards are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from braze.compat.torch.pytree import TreeCodeGen, flatten_call, flatten_tree
from braze.errors import UserError
from braze.interop.fx_graph import placeholder_name
from braze.ir.captured.frame import FromSizes, NewCall, NewDict, NewSequence, Recipe
from braze.ir.captured.guard import Guard


class Exported(NamedTuple):
    """The result of `export`: a graph, and the guards under which it is right."""

    graph_module: fx.GraphModule
    guards: tuple[Guard, ...]


def export_graph(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    call: tuple[Sequence[str], tuple[object, ...], dict[str, object]],
    results: Sequence[torch.Tensor],
    result: object,
) -> fx.GraphModule:
    """`module`, which takes `inputs` and gives `results` one by one, as a module that takes what
    was given in one call and gives its `result`.

    call: names of positional parameters, arguments, and keyword arguments.
    """
    parameters, args, kwargs = call
    leaves, in_spec, names = flatten_call(parameters, args, kwargs)
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in names]
    by_identity = {id(leaf): node for leaf, node in zip(leaves, nodes) if _is_tensor(leaf)}
    by_name = {placeholder_name(f"L[{name!r}]"): node for name, node in zip(names, nodes)}
    root = torch.nn.Module()
    known: dict[fx.Node, Any] = {}
    for old, tensor in zip(module.graph.find_nodes(op="placeholder"), inputs):
        node = by_identity.get(id(tensor)) if _is_tensor(tensor) else by_name.get(old.name)
        if node is None and not _is_tensor(tensor):
            raise UserError(f"export: {old.name}, a number that is a symbol, is no argument itself")
        if node is None:
            node = _attribute(root, graph, old.name, tensor)
            by_identity[id(tensor)] = node
        known[old] = node
    for old in module.graph.find_nodes(op="get_attr"):
        known[old] = _attribute(root, graph, old.name, getattr(module, old.target))
    made = graph.graph_copy(module.graph, known)
    assert isinstance(made, tuple), made
    by_identity.update({id(value): node for value, node in zip(results, made)})
    outputs, out_spec = flatten_tree(result)
    graph.output([_leaf(by_identity, value) for value in outputs])
    graph.set_codegen(TreeCodeGen(parameters, in_spec, out_spec))
    graph.lint()
    return fx.GraphModule(root, graph)


def _leaf(nodes: dict[int, torch.fx.Node], value: object) -> Any:
    if not _is_tensor(value):
        if type(value) in (int, float, bool, str, type(None), complex):
            return value
        raise UserError(
            f"export: the result holds a {type(value).__name__}, which no graph can give: return "
            "tensors, numbers, strings, and lists, tuples and dicts of them."
        )
    if id(value) not in nodes:
        raise UserError("export: the result holds a tensor that the graph does not make.")
    return nodes[id(value)]


def holds_size(recipe: Recipe) -> bool:
    """Whether a result is, or holds, a number that follows from sizes or from data."""
    if isinstance(recipe, FromSizes):
        return True
    if isinstance(recipe, NewSequence):
        return any(map(holds_size, recipe.items))
    if isinstance(recipe, NewDict):
        return any(holds_size(part) for item in recipe.items for part in item)
    if isinstance(recipe, NewCall):
        return recipe.function is torch.Tensor.item or any(map(holds_size, recipe.args))
    return False


def _attribute(root: torch.nn.Module, graph: fx.Graph, name: str, tensor: torch.Tensor) -> fx.Node:
    if isinstance(tensor, torch.nn.Parameter):
        root.register_parameter(name, tensor)
    else:
        root.register_buffer(name, tensor)
    return graph.get_attr(name)


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
