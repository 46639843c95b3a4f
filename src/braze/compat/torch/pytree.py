"""torch's flattening of nested containers, and fx modules that take and give them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, final

from braze.compat.private_names import TreeCode, TreeInfo, pytree
from braze.frozen import frozen


def flatten_tree(value: object) -> tuple[list[Any], Any]:
    """The leaves of nested containers, and how to put them together again."""
    leaves, spec = pytree.tree_flatten(value)
    return leaves, spec


def flatten_call(
    parameters: Sequence[str], args: tuple[object, ...], kwargs: dict[str, object]
) -> tuple[list[object], object, list[str]]:
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


@final
@frozen
class TreeNode:
    """A class whose instances `torch.utils._pytree` takes apart. flatten: an instance to its
    children and a context; unflatten: back. name: by which files refer to it, or None."""

    flatten: Callable[[Any], tuple[Sequence[Any], Any]]
    unflatten: Callable[[Sequence[Any], Any], Any]
    name: str | None


def tree_node_of(cls: type) -> TreeNode | None:
    """What is registered for a class."""
    found = pytree.SUPPORTED_NODES.get(cls)
    if found is None:
        return None
    named = pytree.SUPPORTED_SERIALIZED_TYPES.get(cls)
    name = getattr(named, "serialized_type_name", None)
    is_name = type(name) is str and pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name) is cls
    return TreeNode(found.flatten_fn, found.unflatten_fn, name if is_name else None)


def class_registered_as(name: str) -> type | None:
    """The class that files refer to by a name."""
    found = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(name)
    return found if isinstance(found, type) else None


class TreeCodeGen(TreeCode):
    """Code of a graph module that takes `*args, **kwargs` and gives nested containers."""

    def __init__(self, parameters: Sequence[str], in_spec: Any, out_spec: Any) -> None:
        args, kwargs = _children(in_spec)
        names = [*_positional_names(parameters, args.num_children), *kwargs.context]
        super().__init__(TreeInfo(names, in_spec, out_spec))


def _children(spec: Any) -> list[Any]:
    """The specs inside of a spec: an attribute that became a method."""
    return list(spec.children() if hasattr(spec, "children") else spec.children_specs)
