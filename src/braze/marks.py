"""Marks that users put on single functions: never compile, take whole, break the graph here.

The facade writes marks, capture and the runtime read them. Marks are kept beside the functions,
not on them: `functools.wraps` copies attributes, and a wrapper is not what was marked.
The functions that a program may call inside of compiled code stand here too.
"""

from __future__ import annotations

import enum
import functools
import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, final

from braze.errors import UserError
from braze.frozen import frozen
from braze.locks import make_lock

# Methods of C classes cannot be weakly referenced; they live as long as their class does.
_IMMORTAL = (types.MethodDescriptorType, types.WrapperDescriptorType)


class Mark(enum.Enum):
    """What capture does when it meets a call of a marked function."""

    DISABLE = "disable"  # break the graph, run it natively, compile nothing in it
    DISABLE_FRAME = "disable_frame"  # run its own tensor operations natively; compile its callees
    DISALLOW_IN_GRAPH = "disallow_in_graph"  # break the graph at it
    ALLOW_IN_GRAPH = (
        "allow_in_graph"  # call it on fake tensors without interpreting its Python code
    )
    NONSTRICT_TRACE = "nonstrict_trace"  # the same, with what it closes over, and any containers
    ASSUME_CONSTANT = "assume_constant_result"  # call it once while capturing, its result is fixed
    GRAPH_BREAK = "graph_break"  # `braze.graph_break` itself
    IS_COMPILING = "is_compiling"  # `braze.is_compiling` itself: True while capturing
    COMPILED = "compiled"  # a result of `braze.compile`; its `__wrapped__` is the original


@final
class Marks:
    """Marks by function, without keeping the function alive. Looking one up runs no code of the
    program, and finds no other object that is equal to a marked one.

    changes: how many were put; orders: of these, those that say how to capture; entries: by
    identity, what knows that the object is still there, its mark and the note.
    """

    __slots__ = ("_lock", "changes", "entries", "orders")

    def __init__(self) -> None:
        self._lock = make_lock()
        self.changes = self.orders = 0
        self.entries: dict[int, tuple[Any, Mark, str]] = {}

    def put(self, function: object, mark: Mark, note: str = "") -> None:
        """Mark a function or class; `note` says why. Raises UserError for what cannot be
        marked."""
        try:
            with self._lock:
                self.entries[id(function)] = (self._held(function), mark, note)
                self.changes += 1
                self.orders += mark is not Mark.COMPILED
        except TypeError:
            raise UserError(f"{mark.value} takes a function or a class, not {function!r}") from None

    def of(self, function: object) -> Mark | None:
        """The mark of exactly this object."""
        entry = self.entries.get(id(function))
        return None if entry is None else entry[1]

    def note_of(self, function: object) -> str:
        """The note that was put with the mark, or ""."""
        entry = self.entries.get(id(function))
        return "" if entry is None else entry[2]

    def _held(self, function: object) -> Any:
        """A weak reference that ends the entry; it raises TypeError where there can be none."""
        if issubclass(type(function), _IMMORTAL):
            return function
        # Called where the object ends, within any code: it takes no lock, and has no frame that
        # another compiler would be shown. The reference is the default of `pop`.
        return weakref.ref(function, functools.partial(self.entries.pop, id(function)))


MARKS = Marks()


def is_compiling() -> bool:
    """Return True while Braze captures the program, and False when it runs eagerly."""
    return False


def is_exporting() -> bool:
    """Return True while `braze.export` or `braze.package` captures the program, and False when it
    is compiled, or runs."""
    return False


def graph_break(message: str = "", *, msg: str = "") -> None:
    """End the graph here and continue in a new one; no effect when the program runs eagerly.

    message: shown with the break; msg: the same, as torch.compile names it.
    """


def allow_in_graph(function: object) -> Any:
    """Take calls of a function (or several) into the graph without looking into its Python code.

    It must be traceable: called on tensors without data it does torch operations only.
    """
    return _mark_each(function, Mark.ALLOW_IN_GRAPH)


def nonstrict_trace(function: object) -> Any:
    """Trace a function by running it on fake tensors, without interpreting its Python code; a
    decorator.

        @braze.nonstrict_trace
        def step(batch): ...            what it does besides calling torch is done in the trace

    Arguments and results are tensors, numbers, and containers of them (classes by
    `torch.utils._pytree.register_pytree_node`); other arguments are told apart by identity. Tensors
    that it closes over are inputs of the graph; nothing else that it reads is guarded.
    """
    if not isinstance(function, types.FunctionType):
        raise UserError(f"nonstrict_trace takes a Python function, not {function!r}.")
    MARKS.put(function, Mark.NONSTRICT_TRACE)
    return function


def nested_compile_region(
    function: object = None, *, max_reuse_entries: int = 8, reuse_hash_fn: object = None
) -> Any:
    """Say that a function is called often in a program, as a layer is, with the same work each
    time; a decorator, with or without arguments.

    Braze finds equal parts of a graph unasked, and compiles their kernels once: the function is
    part of its caller's graph, where it is fused with what stands around it, and gives eager's
    results. max_reuse_entries, reuse_hash_fn: of `torch.compiler.nested_compile_region`; no entry
    of a cache is made, and none compared.
    """
    if function is None:
        return lambda function: nested_compile_region(function)
    if not callable(function):
        raise UserError(f"nested_compile_region takes a callable, not {function!r}.")
    return function


def disallow_in_graph(function: object) -> Any:
    """Break the graph at each call of a function (or of several)."""
    return _mark_each(function, Mark.DISALLOW_IN_GRAPH)


def assume_constant_result(function: object) -> Any:
    """Call a function once, while capturing, and keep its result for later calls."""
    return _mark_each(function, Mark.ASSUME_CONSTANT)


def _mark_each(function: object, mark: Mark) -> Any:
    if isinstance(function, (list, tuple)):
        return [_mark_each(each, mark) for each in function]
    if not callable(function):
        raise UserError(f"{mark.value} takes a callable, not {function!r}.")
    MARKS.put(function, mark)
    return function


# A function in C -> the Python function that is captured in its place.
SUBSTITUTES: dict[Any, Any] = {}


def orders_of_capture() -> tuple[int, ...]:
    """What changes when a program says anew how its functions are captured. What was compiled
    before does not follow it; what is compiled behind it does."""
    return (MARKS.orders, *map(id, SUBSTITUTES.values()))


def substitute_in_graph(original: object) -> Any:
    """Capture a Python function wherever the program calls a function in C; a decorator.

        @braze.substitute_in_graph(operator.indexOf)
        def index_of(sequence, item, /): ...

    Both have to do the same: what runs eagerly calls the original. Raises UserError for an original
    that is no function in C, and for a second substitute of one.
    """
    if not isinstance(original, types.BuiltinFunctionType):
        raise UserError(f"substitute_in_graph takes a function in C, not {original!r}.")
    if original in SUBSTITUTES:
        raise UserError(f"substitute_in_graph: {original.__qualname__} has a substitute already.")

    def substitute(function: object) -> Any:
        if not isinstance(function, types.FunctionType):
            raise UserError(f"a substitute is a Python function, not {function!r}.")
        SUBSTITUTES[original] = function
        MARKS.changes += 1
        return function

    return substitute


MARKS.put(is_compiling, Mark.IS_COMPILING)
MARKS.put(graph_break, Mark.GRAPH_BREAK)


# --- dimensions ----------------------------------------------------------------------------------


class DimensionMark(enum.Enum):
    """What a user said about a dimension of a tensor."""

    DYNAMIC = "dynamic"  # an error where the program needs its number
    MAYBE = "maybe dynamic"  # symbolic from the first compile, if the program lets it
    STATIC = "static"
    UNBACKED = "unbacked"


@final
@frozen
class Marked:
    """One marked dimension; least and most: the sizes that it takes."""

    mark: DimensionMark
    least: int | None = None
    most: int | None = None


_ATTRIBUTE = "_braze_dimensions"
# What torch's functions of the same names leave on a tensor: sets of dimensions.
_BY_TORCH = {
    "_dynamo_static_indices": DimensionMark.STATIC,
    "_dynamo_weak_dynamic_indices": DimensionMark.MAYBE,
    "_dynamo_unbacked_indices": DimensionMark.UNBACKED,
    "_dynamo_dynamic_indices": DimensionMark.DYNAMIC,
}
_RANGES_BY_TORCH = "_dynamo_dynamic_range"  # of (dim, min, max)


def marks_of_dimensions(tensor: Any) -> dict[int, Marked]:
    """The marked dimensions of a tensor, whether Braze's functions or torch's marked them."""
    space: dict[str, Any] = getattr(tensor, "__dict__", None) or {}
    found: dict[int, Marked] = {}
    for attribute, mark in _BY_TORCH.items():
        for dim in space.get(attribute, ()):
            found[dim % tensor.dim()] = Marked(mark)
    if found:
        for limits in space.get(_RANGES_BY_TORCH, ()):
            if found.get(limits.dim) is not None:
                found[limits.dim] = Marked(DimensionMark.DYNAMIC, limits.min, limits.max)
    found.update(space.get(_ATTRIBUTE, {}))
    return found


def mark_dynamic(
    tensor: object,
    index: int | Sequence[int],
    *,
    min: int | None = None,
    max: int | None = None,
) -> None:
    """Compile for any size of a dimension (or several) of the tensor, from the first call.

    A program that needs the size to be one number is an error that names the line, as is one that
    allows less than [min, max]. Mark before the call that compiles.
    """
    if min is not None and max is not None and min > max:
        raise UserError(f"mark_dynamic: min={min} is greater than max={max}")
    _mark(tensor, index, Marked(DimensionMark.DYNAMIC, min, max))


def maybe_mark_dynamic(tensor: object, index: int | Sequence[int]) -> None:
    """Compile for any size of a dimension, unless the program needs the size to be one number.

    Unlike `mark_dynamic`, such a program is compiled for that number, and no error is raised.
    """
    _mark(tensor, index, Marked(DimensionMark.MAYBE))


def mark_static(tensor: Any, index: int | Sequence[int] | None = None) -> None:
    """Compile for each size of a dimension anew, however often it changes.

    index: the dimension, or several; None: all.
    """
    _mark(tensor, range(tensor.dim()) if index is None else index, Marked(DimensionMark.STATIC))


def mark_unbacked(tensor: object, index: int | Sequence[int]) -> None:
    """Compile for any size of a dimension, without looking at the size of this tensor.

    A program that depends on the size is an error that names the line.
    """
    _mark(tensor, index, Marked(DimensionMark.UNBACKED))


def _mark(tensor: Any, index: int | Sequence[int], marked: Marked) -> None:
    rank = tensor.dim()
    found = dict(marks_of_dimensions(tensor))
    for dim in (index,) if isinstance(index, int) else tuple(index):
        if not -rank <= dim < rank:
            raise UserError(f"a tensor of {rank} dimensions has no dimension {dim} to be marked")
        found[dim % rank] = marked
    put_marks(tensor, found)


def put_marks(tensor: object, marks: Mapping[int, Marked]) -> None:
    """Have a tensor's dimensions marked like this, and those that are marked already stay."""
    setattr(tensor, _ATTRIBUTE, {**marks_of_dimensions(tensor), **marks})
