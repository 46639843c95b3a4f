"""Which sizes of a packaged call may change: `dynamic_shapes` as torch.export takes it, and what
an exported program says of its own."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias, final

import torch
from torch.export import Dim, ExportedProgram

from braze.compat.torch.pytree import flatten_tree
from braze.errors import UserError
from braze.frozen import frozen
from braze.marks import DimensionMark, Marked, put_marks
from braze.packages.changing_sizes import ChangingSize
from braze.packages.nodes import parts_of

_LEAST = 2  # of a size that is computed from others
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
    for the module compares which were given by keyword. sizes: those of the tensors among the
    leaves that may change."""

    module: torch.nn.Module
    signature: inspect.Signature
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sizes: tuple[ChangingSize, ...]


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
    places: dict[Any, list[tuple[int, int]]] = {}
    for number, (_, value) in enumerate(zip(given, typed)):
        for dim, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                places.setdefault(size.node.expr, []).append((number, dim))
    sizes = _sizes_of_export(places, program.range_constraints)
    return ExportedCall(module, signature, args, kwargs, sizes)


def _sizes_of_export(
    places: Mapping[Any, list[tuple[int, int]]], ranges: Mapping[object, object]
) -> tuple[ChangingSize, ...]:
    """By the symbols of the program, and expressions of them. places: leaf and dimension."""
    computed = {s for expr in places if not expr.is_symbol for s in expr.free_symbols}
    made = []
    for expr, found in places.items():
        limits: Any = ranges.get(expr) if expr.is_symbol else None
        least, most = (_LEAST, None)
        if limits is not None:
            least, most = int(limits.lower), _number(limits.upper)
        is_single = expr.is_symbol and expr not in computed
        made.append(ChangingSize(str(expr), tuple(found), max(least, 0), most, is_single))
    return tuple(made)


def _signature_of_export(module: torch.nn.Module, positional: int) -> inspect.Signature:
    """Of its forward, which names the leaves of the call: those behind the positional ones are
    keyword-only."""
    found = list(inspect.signature(module.forward).parameters.values())
    names = inspect.Parameter.KEYWORD_ONLY
    made = [*found[:positional], *(each.replace(kind=names) for each in found[positional:])]
    return inspect.Signature(made)


def mark_dimensions(
    arguments: Mapping[str, object], shapes: object, leaves: Sequence[torch.Tensor]
) -> tuple[ChangingSize, ...]:
    """The sizes of arguments that `dynamic_shapes` names; what it gives no name is marked. Raises
    UserError where it does not fit them. leaves: the tensors of the arguments."""
    if isinstance(shapes, (tuple, list)):
        if len(shapes) != len(arguments):
            raise UserError(
                f"dynamic_shapes has {len(shapes)} items, and there are {len(arguments)} arguments."
            )
        shapes = dict(zip(arguments, shapes))
    if not isinstance(shapes, Mapping):
        raise UserError(f"dynamic_shapes is a dict or a tuple, by argument, not {shapes!r}.")
    named: list[tuple[Dim, tuple[int, int]]] = []
    numbers = {id(leaf): number for number, leaf in reversed([*enumerate(leaves)])}
    for name, shape in shapes.items():
        if name not in arguments:
            raise UserError(
                f"dynamic_shapes names {name!r}, and the call has {', '.join(arguments) or 'none'}."
            )
        for tensor, dim, said in _named(arguments[name], shape, name):
            named.append((said, (numbers[id(tensor)], dim)))
    return _sizes_of_dims(named)


def _sizes_of_dims(named: Sequence[tuple[Dim, tuple[int, int]]]) -> tuple[ChangingSize, ...]:
    places: dict[str, dict[tuple[int, int], None]] = {}
    dims = {said.__name__: said for said, _ in named}
    for said, place in named:
        places.setdefault(said.__name__, {})[place] = None
    roots = {name: getattr(said, "root", None) for name, said in dims.items()}
    computed = {root.__name__ for root in roots.values() if root is not None}
    made = []
    for name, found in places.items():
        least, most = (_number(getattr(dims[name], limit, None)) for limit in ("min", "max"))
        is_single = roots[name] is None and name not in computed
        made.append(ChangingSize(name, tuple(found), least or 0, most, is_single))
    return tuple(made)


# --- private -------------------------------------------------------------------------------------


Named: TypeAlias = tuple[torch.Tensor, int, Dim]


def _named(value: object, shape: object, path: str) -> Iterator[Named]:
    """The dimensions of an argument that have a Dim; others are marked."""
    if shape is None:
        return
    if isinstance(value, torch.Tensor):
        yield from _dimensions(value, shape, path)
    elif isinstance(value, Mapping) and isinstance(shape, Mapping) and {*shape} <= {*value}:
        for key, inner in shape.items():
            yield from _named(value[key], inner, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)) and isinstance(shape, (list, tuple)):
        if len(shape) != len(value):
            raise UserError(f"dynamic_shapes of {path} has {len(shape)} items, not {len(value)}.")
        for number, (item, inner) in enumerate(zip(value, shape)):
            yield from _named(item, inner, f"{path}[{number}]")
    elif (parts := parts_of(value, path)) is not None:
        given = parts_of(shape, path) if type(shape) is type(value) else None
        items = shape if given is None else given.children
        yield from _named(parts.children, items, path)
    else:
        raise UserError(f"dynamic_shapes of {path} is {shape!r}, which does not fit the argument.")


def _dimensions(tensor: torch.Tensor, shape: object, path: str) -> Iterator[Named]:
    if isinstance(shape, Sequence) and len(shape) == tensor.dim():
        shape = dict(enumerate(shape))
    if not isinstance(shape, Mapping):
        raise UserError(
            f"dynamic_shapes of {path} is a dict of dimensions, or a tuple of {tensor.dim()}, not "
            f"{shape!r}."
        )
    marks = {}
    for dim, said in shape.items():
        if type(dim) is not int or not -tensor.dim() <= dim < tensor.dim():
            raise UserError(f"dynamic_shapes: {path} has no dimension {dim!r}.")
        if isinstance(said, Dim):
            yield tensor, dim % tensor.dim(), said
        else:
            marks[dim % tensor.dim()] = _mark_of(said, f"dimension {dim} of {path}")
    put_marks(tensor, marks)


def _number(limit: Any) -> int | None:
    """A limit of a dimension; None for none, which torch has an infinity for."""
    return int(limit) if limit is not None and limit < _NO_LIMIT else None


def _mark_of(said: object, where: str) -> Marked:
    if said is None or type(said) is int:
        return _STATIC
    hint = _HINTS.get(getattr(getattr(said, "type", None), "name", ""))
    if hint is None:
        raise UserError(f"dynamic_shapes: {where} is {said!r}: it is a Dim, None or a number.")
    return hint
