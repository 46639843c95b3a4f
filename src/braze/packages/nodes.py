"""Instances of the program's own classes in arguments and results: named tuples, and what
`torch.export.register_dataclass` or `register_pytree_node` registered.

A package holds a class by its name, and an instance by its children and its context, as its
registered functions take it apart. In the process that loads it the class is the one registered
under that name, or found by it in the modules that are imported then. A named tuple whose module is
not imported becomes one of the same name and fields.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard, final

from braze.compat.torch.pytree import TreeNode, class_registered_as, tree_node_of
from braze.errors import InvalidPackage, UserError
from braze.frozen import frozen
from braze.packages.values import decode, encode, is_same, is_value

# Module, qualified name, the name for files or None, fields of a named tuple or None.
ClassData: TypeAlias = Sequence[Any]


@final
@frozen
class InstanceParts:
    """An instance taken apart. context: as JSON."""

    data: ClassData
    children: tuple[Any, ...]
    context: Any


def is_named_tuple(cls: type) -> TypeGuard[type[NamedTuple]]:
    """Whether `collections.namedtuple` or `typing.NamedTuple` made the class."""
    return issubclass(cls, tuple) and cls.__bases__ == (tuple,) and hasattr(cls, "_fields")


def class_data(cls: type) -> ClassData | None:
    """How a package names a class; None for one whose instances it cannot hold."""
    fields = list(cls._fields) if is_named_tuple(cls) else None
    node = tree_node_of(cls)
    if fields is None and node is None:
        return None
    return [cls.__module__, cls.__qualname__, node and node.name, fields]


def parts_of(value: Any, path: str) -> InstanceParts | None:
    """The parts of an instance of such a class. Raises UserError for a context that no package
    holds."""
    data = class_data(type(value))
    if data is None:
        return None
    if data[3] is not None:
        return InstanceParts(data, tuple(value), None)
    node = tree_node_of(type(value))
    assert node is not None
    children, context = node.flatten(value)
    if not is_value(context):
        raise UserError(
            f"braze.package: {path} is a {type(value).__qualname__}, whose registered context "
            f"{context!r} a package cannot hold: numbers, strings, and lists and tuples of them."
        )
    return InstanceParts(data, tuple(children), encode(context))


def is_instance(value: object, data: ClassData) -> bool:
    """Whether a value is of the class that a package names so."""
    cls = type(value)
    if data[3] is not None and is_named_tuple(cls):
        return bool([*_fields(cls)] == data[3] and cls.__qualname__ == data[1])
    return value is not None and cls is _found(data)


def leaves_out(value: object, name: str) -> bool:
    """Whether an instance has an attribute that its registered function does not tell: what was
    computed from the children, which other children would give another value."""
    space = getattr(value, "__dict__", None)
    if type(space) is not dict or name not in space or tree_node_of(type(value)) is None:
        return False
    parts = parts_of(value, name)
    assert parts is not None
    kept = space[name]
    if kept is None or any(child is kept for child in parts.children):
        return False
    return not (is_value(kept) and _holds(decode(parts.context), kept))


def build(data: ClassData, children: Sequence[object], context: object) -> object:
    """An instance. Raises InvalidPackage where this process does not have the class."""
    return Builder(data, context)(children)


@final
class Builder:
    """Makes instances of a class from their children."""

    def __init__(self, data: ClassData, context: object) -> None:
        """Raises InvalidPackage where this process does not have the class."""
        self._context = decode(context)
        cls = _found(data)
        self._make: Any = None
        self._node: TreeNode | None = None
        if data[3] is not None:
            if cls is not None and is_named_tuple(cls) and [*cls._fields] == data[3]:
                self._make = cls._make
            else:
                self._make = _made_named_tuple(data)._make
            return
        self._node = None if cls is None else tree_node_of(cls)
        if self._node is None:
            name = f"{data[0]}.{data[1]}" + (f" ({data[2]})" if data[2] else "")
            raise InvalidPackage(
                f"the package holds instances of {name}, which this process has not registered: "
                "import the module that defines the class, and register it as when the package was "
                "written (torch.export.register_dataclass), before braze.load_package."
            )

    def __call__(self, children: Sequence[object]) -> object:
        if self._node is None:
            return self._make(children)
        return self._node.unflatten(children, self._context)


# --- private ---------------------------------------------------------------------------------


def _holds(context: Any, value: object) -> bool:
    if type(context) in (list, tuple):
        return any(_holds(item, value) for item in context)
    return is_same(context, value)


def _fields(cls: Any) -> tuple[str, ...]:
    return tuple(cls._fields)


def _found(data: ClassData) -> type | None:
    """The class of a name, without an import."""
    module, qualname, name, _ = data
    if name is not None and (registered := class_registered_as(name)) is not None:
        return registered
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _made_named_tuple(data: ClassData) -> Any:
    module, qualname, _, fields = data
    return collections.namedtuple(qualname.rpartition(".")[2], fields, module=module)
