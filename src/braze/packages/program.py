"""A launch program as data: its text, what each of its names stands for, and its memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from braze.compat.torch.autograd_engine import note_write
from braze.compat.torch.profiler import PROFILER
from braze.compat.torch.registered_ops import NAMESPACE
from braze.errors import InvalidPackage, UserError
from braze.ir.captured.compile_request import after_effects, make_writes
from braze.ir.graphs.region import RegionOp
from braze.packages.regions import ReadGraph, WriteGraph, read_region, region_data
from braze.packages.values import decode, dtype_named, encode, is_value, name_of
from braze.runtime.launch.arena_view import ArenaView
from braze.runtime.launch.dynamic_arena import ArenaLayout
from braze.runtime.launch.frame_layout import FrameLayout
from braze.runtime.launch.program_text import Allocator, LaunchProgram, NamedOperator
from braze.shapes.binding import raise_unmet
from braze.shapes.expr import Symbol

# What launch programs call of the runtime.
_RUNTIME: dict[str, Any] = {
    "after_effects": after_effects,
    "make_writes": make_writes,
    "note_write": note_write,
    "profiler": PROFILER,
    "raise_unmet": raise_unmet,
}
_OURS = "braze"

AddTensor = Callable[[torch.Tensor, str], int]


def program_data(
    program: LaunchProgram, layout: FrameLayout, add: AddTensor, write: WriteGraph
) -> dict[str, object]:
    """The program as JSON. add: gives the number of a tensor that the package holds. write: gives
    the graph of a region as JSON. Raises UserError for an operator that no name says."""
    return {
        "parts": list(program.parts),
        "names": {
            name: _meaning(program, name, value, add, write)
            for name, value in program.names.items()
        },
        "is_pure": program.is_pure,
        "layout": _layout_data(layout),
    }


def read_program(data: Mapping[str, Any]) -> tuple[LaunchProgram, FrameLayout]:
    """The program, without those of its names that the state of the package gives."""
    parts = tuple(map(str, data["parts"]))
    names = {name: _found(kind, content) for name, (kind, content) in data["names"].items()}
    names = {name: value for name, value in names.items() if value is not _LATER}
    program = LaunchProgram(parts, names, (), is_pure=bool(data["is_pure"]))
    return program, _layout(data["layout"])


def constants_of_program(data: Mapping[str, Any], state: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Names of the program that are tensors of the package."""
    return {
        name: state[content] for name, (kind, content) in data["names"].items() if kind == "tensor"
    }


def regions_of_program(data: Mapping[str, Any], read: ReadGraph) -> dict[str, object]:
    """Names of the program that are branches, loops and scans. read: gives the program of a
    graph."""
    return {
        name: read_region(content, read)
        for name, (kind, content) in data["names"].items()
        if kind == "region"
    }


def operator_named(name: str) -> torch._ops.OpOverload:
    """The operator of a name. Raises InvalidPackage where no library of this process has it."""
    space, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    try:
        library = getattr(torch.ops, NAMESPACE if space == _OURS else space)
        found: torch._ops.OpOverload = getattr(getattr(library, packet), overload or "default")
        return found
    except AttributeError as error:
        raise InvalidPackage(
            f"the package calls the operator {name}, which this process has not got: import the "
            "library that registers it before braze.load_package."
        ) from error


# --- names -----------------------------------------------------------------------------------

_LATER = object()


def _meaning(
    program: LaunchProgram, name: str, value: object, add: AddTensor, write: WriteGraph
) -> list[object]:
    known = program.meanings.get(name)
    if isinstance(known, NamedOperator):
        op: object = known.op
        if isinstance(op, RegionOp):
            return ["region", region_data(op, write)]
        return ["operator", _operator_name(known.op)]
    if isinstance(known, Allocator):
        return ["new", [name_of(known.dtype), str(known.device)]]
    if isinstance(value, torch.Tensor):
        return ["tensor", add(value, f"a constant of the graph ({name})")]
    if name in _RUNTIME and _RUNTIME[name] is value:
        return ["runtime", name]
    if is_value(value):
        return ["value", encode(value)]
    raise UserError(
        f"braze.package: the graph needs a {type(value).__qualname__}, which no package holds: "
        f"{value!r}."
    )


def _operator_name(op: object) -> str:
    if not isinstance(op, torch._ops.OpOverload):
        raise UserError(
            f"braze.package: the graph holds {op}, a function of Python, which packages cannot "
            "hold: register it as an operator (torch.library.custom_op)."
        )
    space, _, rest = op.name().partition("::")
    return f"{_OURS if space == NAMESPACE else space}::{rest}"


def _found(kind: str, content: Any) -> object:
    if kind == "operator":
        return NamedOperator(operator_named(content)).find()
    if kind == "new":
        dtype, device = content
        return Allocator(dtype_named(dtype), torch.device(device)).find()
    if kind == "runtime":
        return _RUNTIME[content]
    if kind in ("tensor", "region"):
        return _LATER
    if kind != "value":
        raise ValueError(f"no name of a program is a {kind}")
    return decode(content)


# --- memory ----------------------------------------------------------------------------------


def _layout_data(layout: FrameLayout) -> dict[str, object]:
    arena = layout.arena
    return {
        "arena_size": layout.arena_size,
        "offsets": list(layout.offsets),
        "constants": list(layout.constants),
        "sizes": layout.sizes,
        "views": [
            [view.start, list(view.shape), list(view.stride), view.offset, name_of(view.dtype)]
            for view in layout.views
        ],
        "arena": arena
        and {
            "offsets": arena.offsets,
            "places": list(arena.places),
            "views": [[slot, name_of(dtype)] for slot, dtype in arena.views],
            "shapes": arena.shapes,
        },
    }


def _layout(data: Mapping[str, Any]) -> FrameLayout:
    arena, no_symbols = data["arena"], tuple[Symbol, ...]()
    return FrameLayout(
        data["arena_size"],
        tuple(data["offsets"]),
        tuple(data["constants"]),
        data["sizes"],
        tuple(
            [
                ArenaView(start, tuple(shape), tuple(stride), offset, dtype_named(dtype))
                for start, shape, stride, offset, dtype in data["views"]
            ]
        ),
        arena
        and ArenaLayout(
            no_symbols,
            arena["offsets"],
            tuple(arena["places"]),
            tuple([(slot, dtype_named(dtype)) for slot, dtype in arena["views"]]),
            arena["shapes"],
        ),
    )
