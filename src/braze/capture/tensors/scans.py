"""`scan`, `map` and `associative_scan` in a graph: one node that holds the function of a turn.

    scan(f, init, xs)     ->     region<scan 1 1>([init, xs, ...], [])   with the graph of f

The function is traced and compiled once, whatever the length. Where it does more than compute
(writes to what existed before, draws random numbers, runs under a transform of torch.func), its
turns are unrolled. An associative scan is a loop over distances that double, each turn of which
combines all rows at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised, UnrollRequested
from braze.capture.state.guard_context import TENSORS
from braze.capture.tensors.regions import (
    FunctionTrace,
    as_region,
    call_recorded,
    fresh_operand,
    region_operands,
    region_operator,
    result_type,
    trace_function,
)
from braze.compat.private_names import pytree
from braze.compat.torch.higher_order.operators import (
    ASSOCIATIVE,
    MAP,
    SCAN,
    combined_by_doubling,
)
from braze.ir.graphs.region import RegionKind
from braze.ir.types import TensorType
from braze.tracing.shape_rules.strides import as_operand, contiguous

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter
    from braze.tracing.fake_tensor import TracedTensor


@answers(SCAN)
def scan(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """A node that carries values from row to row; its turns one by one where it cannot be."""
    named = dict(zip(("combine", "init", "rows", "additional_inputs"), args)) | kwargs
    combine, *given = (*named.values(), ())[:4]
    carried, rows, more = (tuple(interpreter.side_effects.contents(part)) for part in given)
    place = _place(interpreter)
    if not _fits(interpreter, carried, rows, place):
        return interpreter.call_python(SCAN, args, kwargs)
    try:
        turn = _traced(interpreter, combine, carried, rows, more)
        # The program's function gives trees; what calls the operator itself gives leaves in a row.
        parts = turn.trace.made if hasattr(combine, "keywords") else None
        trees = None if parts is None else [_flattened(interpreter, part) for part in parts]
        return _recorded(interpreter, turn, trees)
    except BreakRequested as refused:
        raise _unrolled(refused, place) from None


@answers(MAP)
def map_rows(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A node that calls a function for each row; its turns one by one where it cannot be."""
    function, *given = args
    rows, more = (tuple(interpreter.side_effects.contents(part)) for part in given)
    place = _place(interpreter)
    if kwargs or not _fits(interpreter, (), rows, place):
        return interpreter.call_python(MAP, args, kwargs)
    try:
        turn = _traced(interpreter, function, (), rows, more)
        trees = [_flattened(interpreter, turn.trace.made)]
        (made,) = _recorded(interpreter, turn, trees)
    except BreakRequested as refused:
        raise _unrolled(refused, place) from None
    return made


@answers(ASSOCIATIVE)
def associative(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """A loop over distances; PyTorch's own recursion under a transform of torch.func."""
    combine, leaves = args[:2]
    rows, place = tuple(interpreter.side_effects.contents(leaves)), _place(interpreter)
    plain = len(args) > 2 or kwargs.get("dim", 0) or kwargs.get("additional_inputs", ())
    if plain or not _fits(interpreter, (), rows, place):
        return interpreter.call_python(ASSOCIATIVE, args, kwargs)
    try:
        return interpreter.call(combined_by_doubling, combine, list(rows))
    except BreakRequested as refused:
        raise _unrolled(refused, place) from None


# --- private ---------------------------------------------------------------------------------


class _Turn(NamedTuple):
    """A function, traced on fake tensors for what it carries and for rows. flows: whether
    gradients flow through what is carried; kinds: the types of that."""

    trace: FunctionTrace
    leaves: list[Any]
    carried: tuple[Any, ...]
    rows: tuple[Any, ...]
    inner: tuple[Any, ...]
    flows: list[bool]
    kinds: list[TensorType]


def _fits(
    interpreter: Interpreter, carried: Sequence[object], rows: Sequence[Any], place: object
) -> bool:
    """Whether there are rows, as many of each, and all are tensors of the frame."""
    if interpreter.transforms or place in interpreter.request.refusing:
        return False
    if not rows or not all(type(value) in TENSORS for value in (*carried, *rows)):
        return False
    if not all(row.dim() for row in rows):
        return False
    count = rows[0].place.type.shape[0]
    # PyTorch's own checks, before its operators are called, are for none.
    return count != 0 and all(row.place.type.shape[0] == count for row in rows)


def _traced(
    interpreter: Interpreter,
    function: Any,
    carried: tuple[Any, ...],
    rows: tuple[Any, ...],
    more: tuple[object, ...],
) -> _Turn:
    """The function of a turn, traced until it is known what gradients flow through."""
    records = torch.is_grad_enabled()
    kinds = [result_type(value) for value in carried]
    flows = [value.requires_grad and records for value in carried]
    sliced = [_row_type(value.place.type) for value in rows]
    while True:
        inner = [fresh_operand(interpreter, kind, flow) for kind, flow in zip(kinds, flows)]
        inner += [
            fresh_operand(interpreter, kind, value.requires_grad and records)
            for kind, value in zip(sliced, rows)
        ]
        trace = trace_function(interpreter, function, (*inner, *more))
        leaves, _ = _flattened(interpreter, trace.made)
        after = leaves[: len(carried)]
        _check_carried(after, inner)
        found = [flow or made.requires_grad for flow, made in zip(flows, after)]
        if found == flows:
            return _Turn(trace, leaves, carried, rows, tuple(inner), flows, kinds)
        flows = found


def _recorded(interpreter: Interpreter, turn: _Turn, trees: Any) -> tuple[object, ...]:
    """The results of the node that runs the turn for each row; trees: leaves and structure of each
    part of what it gives, None for a row of leaves."""
    tracer, trace = interpreter.tracer, turn.trace
    count, length = len(turn.carried), turn.rows[0].place.type.shape[0]
    columns = [leaf for leaf in turn.leaves[count:] if leaf is not None]
    if not all(type(leaf) in TENSORS for leaf in columns):
        raise BreakRequested("condition", "a turn gives something else than tensors")
    made = [*turn.leaves[:count], *columns]
    dense = [contiguous(x.dtype, x.place.type.shape, x.device) for x in columns]
    region = as_region(interpreter, trace, made, [*turn.kinds, *dense])
    own = [tracer.value_of(fake) for fake in turn.inner]
    reads = tuple(dict.fromkeys(value for value in region.reads if value not in own))
    differentiable = [*turn.flows, *[leaf.requires_grad for leaf in columns]]
    counts = count, len(turn.rows)
    op = region_operator(
        interpreter, RegionKind.SCAN, [region], (*own, *reads), differentiable, counts
    )
    captured = region_operands(interpreter, reads, trace.touched, trace.begun, op)
    operands = [*turn.carried, *turn.rows, *captured]
    begun, _ = tracer.bind_tracked([*turn.carried, *turn.rows])
    wanted = [*turn.kinds, *[row.place.type for row in turn.rows]]
    begun = [tracer.recorder.restride(value, kind) for value, kind in zip(begun, wanted)]
    stacked = [contiguous(k.dtype, (length, *as_operand(k).shape), k.device) for k in dense]
    kinds = [*turn.kinds, *stacked]
    results = iter(call_recorded(interpreter, op, operands, [*begun, *reads], kinds, trace.calls))
    filled = [None if leaf is None else next(results) for leaf in turn.leaves]
    if trees is None:
        return tuple(filled)
    parts = []
    for leaves, structure in trees:
        here, filled = filled[: len(leaves)], filled[len(leaves) :]
        parts.append(interpreter.call(pytree.tree_unflatten, here, structure))
    return tuple(parts)


def _flattened(interpreter: Interpreter, tree: object) -> tuple[list[Any], Any]:
    """The leaves of what the program's function gives, and how they hang together."""
    leaves, structure = interpreter.call(pytree.tree_flatten, tree)
    return list(interpreter.side_effects.contents(leaves)), structure


def _row_type(kind: TensorType) -> TensorType:
    return TensorType(kind.dtype, kind.shape[1:], kind.stride[1:], kind.device)


def _check_carried(made: Sequence[Any], carried: list[TracedTensor]) -> None:
    """Raise what PyTorch does where a turn gives something else than it was given."""
    for before, after in zip(carried, made):
        if type(after) not in TENSORS or (before.shape, before.dtype, before.device) != (
            after.shape,
            after.dtype,
            after.device,
        ):
            message = "scan: what is carried changes its shape, dtype or device"
            raise ProgramRaised(RuntimeError(message))


def _place(interpreter: Interpreter) -> tuple[Any, int]:
    """The program's code that calls the operator, and where in it."""
    frames = interpreter.frames
    own = [frame for frame in frames if frame.globals.get("__name__", "").split(".")[0] != "torch"]
    frame = own[-1] if own else frames[-1]
    return frame.code, frame.index


def _unrolled(refused: BreakRequested, place: tuple[object, int]) -> BaseException:
    """What the capture is ended by: another one in which the turns are unrolled."""
    return UnrollRequested(place) if refused.code == "condition" else refused
