"""Which sizes of a packaged call may change: `dynamic_shapes` as torch.export takes it, and what
an exported program says of its own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch.export import Dim, ExportedProgram

from braze.compat.torch.pytree import flatten_tree
from braze.errors import UserError
from braze.frozen import frozen
from braze.marks import DimensionMark, Marked, put_marks

# Below two, sizes are no symbols: a call with such a size does not fit, which it is told.
_LEAST = 2
_NO_LIMIT = 1 << 40
_STATIC = Marked(DimensionMark.STATIC)
_HINTS = {
    "AUTO": Marked(DimensionMark.MAYBE),
    "DYNAMIC": Marked(DimensionMark.DYNAMIC),
    "STATIC": _STATIC,
}


@final
@frozen
class ExportedCall:
    """An example call of an exported program. signature: its keyword arguments are keyword-only,
    for the module compares which were given by keyword. marks: of each tensor among the leaves of
    (args, kwargs), the sizes that may change."""

    module: torch.nn.Module
    signature: inspect.Signature
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    marks: tuple[Mapping[int, Marked], ...]


def exported_call(program: ExportedProgram, args: Any, kwargs: Any) -> ExportedCall:
    """The call that a program was exported for. args None: with the tensors of the export."""
    if args is None:
        args, kwargs = program.example_inputs or ((), {})
    module = program.module()
    args, kwargs = tuple(args), dict(kwargs or {})
    signature = _signature_of_export(module, len(args))
    kwargs = {name: kwargs[name] for name in signature.parameters if name in kwargs} | kwargs
    leaves, _ = flatten_tree((args, kwargs))
    named = set(program.graph_signature.user_inputs)
    nodes = [node for node in program.graph.find_nodes(op="placeholder") if node.name in named]
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    values = [node.meta.get("val") for node in nodes]
    typed = [value for value in values if isinstance(value, torch.Tensor)]
    marks: list[Mapping[int, Marked]] = []
    for _, value in zip(given, typed):
        sizes = enumerate(value.shape)
        changing = [dim for dim, size in sizes if isinstance(size, torch.SymInt)]
        marks.append({dim: Marked(DimensionMark.DYNAMIC) for dim in changing})
    return ExportedCall(module, signature, args, kwargs, tuple(marks))


def _signature_of_export(module: torch.nn.Module, positional: int) -> inspect.Signature:
    """Of its forward, which names the leaves of the call: those behind the positional ones are
    keyword-only."""
    found = list(inspect.signature(module.forward).parameters.values())
    names = inspect.Parameter.KEYWORD_ONLY
    made = [*found[:positional], *(each.replace(kind=names) for each in found[positional:])]
    return inspect.Signature(made)


def mark_dimensions(arguments: Mapping[str, Any], shapes: Any) -> None:
    """Mark the sizes of arguments that `dynamic_shapes` names. Raises UserError where it does not
    fit them."""
    if isinstance(shapes, (tuple, list)):
        if len(shapes) != len(arguments):
            raise UserError(
                f"dynamic_shapes has {len(shapes)} items, and there are {len(arguments)} arguments."
            )
        shapes = dict(zip(arguments, shapes))
    if not isinstance(shapes, Mapping):
        raise UserError(f"dynamic_shapes is a dict or a tuple, by argument, not {shapes!r}.")
    for name, shape in shapes.items():
        if name not in arguments:
            raise UserError(
                f"dynamic_shapes names {name!r}, and the call has {', '.join(arguments) or 'none'}."
            )
        _mark(arguments[name], shape, name)


# --- private -------------------------------------------------------------------------------------


def _mark(value: Any, shape: Any, path: str) -> None:
    if shape is None:
        return
    if isinstance(value, torch.Tensor):
        put_marks(value, _marks(value, shape, path))
    elif isinstance(value, Mapping) and isinstance(shape, Mapping) and {*shape} <= {*value}:
        for key, inner in shape.items():
            _mark(value[key], inner, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)) and isinstance(shape, (list, tuple)):
        if len(shape) != len(value):
            raise UserError(f"dynamic_shapes of {path} has {len(shape)} items, not {len(value)}.")
        for number, (item, inner) in enumerate(zip(value, shape)):
            _mark(item, inner, f"{path}[{number}]")
    else:
        raise UserError(f"dynamic_shapes of {path} is {shape!r}, which does not fit the argument.")


def _marks(tensor: torch.Tensor, shape: Any, path: str) -> dict[int, Marked]:
    if isinstance(shape, Sequence) and len(shape) == tensor.dim():
        shape = dict(enumerate(shape))
    if not isinstance(shape, Mapping):
        raise UserError(
            f"dynamic_shapes of {path} is a dict of dimensions, or a tuple of {tensor.dim()}, not "
            f"{shape!r}."
        )
    found = {}
    for dim, said in shape.items():
        if type(dim) is not int or not -tensor.dim() <= dim < tensor.dim():
            raise UserError(f"dynamic_shapes: {path} has no dimension {dim!r}.")
        found[dim % tensor.dim()] = _mark_of(said, f"dimension {dim} of {path}")
    return found


def _number(limit: Any) -> int | None:
    """A limit of a dimension; None for none, which torch has an infinity for."""
    return int(limit) if limit is not None and limit < _NO_LIMIT else None


def _mark_of(said: Any, where: str) -> Marked:
    if said is None or type(said) is int:
        return _STATIC
    if isinstance(said, Dim):
        least, most = (_number(getattr(said, name, None)) for name in ("min", "max"))
        low = least if least is not None and least > _LEAST else None
        return Marked(DimensionMark.DYNAMIC, low, most)
    hint = _HINTS.get(getattr(getattr(said, "type", None), "name", ""))
    if hint is None:
        raise UserError(f"dynamic_shapes: {where} is {said!r}: it is a Dim, None or a number.")
    return hint
