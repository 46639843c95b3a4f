"""torch's flattening of nested containers, and fx modules that take and give them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from braze.compat.private_names import TreeCode, TreeInfo, pytree


def flatten_tree(value: Any) -> tuple[list[Any], Any]:
    """The leaves of nested containers, and how to put them together again."""
    leaves, spec = pytree.tree_flatten(value)
    return leaves, spec


def flatten_call(
    parameters: Sequence[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[Any], Any, list[str]]:
    """The leaves of a call's arguments, the spec of `(args, kwargs)`, and a name for each leaf."""
    paths, spec = pytree.tree_flatten_with_path((args, kwargs))
    positional = _positional_names(parameters, len(args))
    names: list[str] = []
    path: Any
    for number, (path, _) in enumerate(paths):
        first = positional[path[1].idx] if path[0].idx == 0 else str(path[1])
        text = first + "".join(map(str, path[2:]))
        name = re.sub(r"\W+", "_", text).strip("_")
        names.append(name if name not in names else f"{name}_{number}")
    return [leaf for _, leaf in paths], spec, names


def _positional_names(parameters: Sequence[str], count: int) -> list[str]:
    return [*parameters[:count], *(f"arg{number}" for number in range(len(parameters), count))]


class TreeCodeGen(TreeCode):
    """Code of a graph module that takes `*args, **kwargs` and gives nested containers."""

    def __init__(self, parameters: Sequence[str], in_spec: Any, out_spec: Any) -> None:
        args, kwargs = _children(in_spec)
        names = [*_positional_names(parameters, args.num_children), *kwargs.context]
        super().__init__(TreeInfo(names, in_spec, out_spec))


def _children(spec: Any) -> list[Any]:
    """The specs inside of a spec: an attribute that became a method."""
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)
