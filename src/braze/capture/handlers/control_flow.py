"""`torch.cond` and `while_loop` in a graph: nodes that hold their branches and bodies as graphs.

    torch.cond(p, f, g, (x,))     ->     region<cond>([p, x], [])   with the graphs of f and g

A call computes the branch that is taken and no other; a body is compiled once, however often it
runs. Branches may only compute: what writes to what existed before, draws random numbers or has
other effects breaks the graph. Refused are, as by PyTorch: branches that give other kinds of
results than each other, that write to what existed before, or whose results share memory with it or
each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.objects.truth import truth
from braze.capture.state.guard_context import CONSTANTS, TENSORS
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
from braze.compat.torch.functorch import is_batched_within
from braze.compat.torch.higher_order.operators import COND, WHILE_LOOP
from braze.ir.graphs.region import RegionKind
from braze.shapes.data_symbols import SymbolicTruth
from braze.tracing.fake_tensor import TracedTensor

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@answers(torch.cond, COND)
def condition(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """The branch that a number or a bool chooses; a node with both, where a tensor does."""
    given = dict(zip(("pred", "true_fn", "false_fn", "operands"), args)) | kwargs
    predicate, branches = given["pred"], (given["true_fn"], given["false_fn"])
    operands = tuple(interpreter.side_effects.contents(given.get("operands", ())))
    if type(predicate) not in TENSORS:
        _check_number(interpreter, predicate)
        return interpreter.call(branches[not truth(interpreter, predicate)], *operands)
    if predicate.numel() != 1:
        raise _refused("its predicate is not one number")
    if interpreter.transforms and not is_batched_within(predicate):
        raise BreakRequested("condition", "it is transformed by torch.func")
    predicate = _as_truth(interpreter, predicate)
    traces = [trace_function(interpreter, branch, operands, _refused) for branch in branches]
    if interpreter.transforms:
        return _selected(interpreter, predicate, *[trace.made for trace in traces])
    for trace in traces:
        _check_memory(trace)
    first, second = traces
    _check_alike(first.made, second.made)
    leaves = [_leaves(trace.made) for trace in traces]
    kinds = [result_type(leaf) for leaf in leaves[0]]
    regions = [as_region(interpreter, *each, kinds) for each in zip(traces, leaves)]
    reads = dict.fromkeys(value for region in regions for value in region.reads)
    touched = {**first.touched, **second.touched}
    differentiable = [any(leaf.requires_grad for leaf in pair) for pair in zip(*leaves)]
    op = region_operator(interpreter, RegionKind.COND, regions, tuple(reads), differentiable)
    fakes = [predicate, *region_operands(interpreter, tuple(reads), touched, first.begun, op)]
    values = [interpreter.tracer.value_of(predicate), *reads]
    results = call_recorded(interpreter, op, fakes, values, kinds, first.calls)
    return _rebuilt(first.made, iter(results))


@answers(WHILE_LOOP)
def loop(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """A node that runs a body while a condition holds; where numbers of Python's are carried, or
    decide, the turns one by one."""
    test, body, carried, more = args[:4]
    carried, more = map(tuple, map(interpreter.side_effects.contents, (carried, more)))
    plain = len(args) > 4 or kwargs or interpreter.transforms or not carried
    if plain or not all(type(value) in TENSORS for value in carried):
        return interpreter.call_python(WHILE_LOOP, args, kwargs)
    kinds = [result_type(value) for value in carried]
    flows = [value.requires_grad and torch.is_grad_enabled() for value in carried]
    while True:  # until it is known what gradients flow through
        inner = [fresh_operand(interpreter, kind, flow) for kind, flow in zip(kinds, flows)]
        turn = trace_function(interpreter, body, (*inner, *more))
        after = [turn.made] if type(turn.made) in TENSORS else turn.made
        _check_turn(after, inner)
        found = [flow or made.requires_grad for flow, made in zip(flows, after)]
        if found == flows:
            break
        flows = found
    regions = [as_region(interpreter, turn, after, kinds)]
    ask = trace_function(interpreter, test, (*inner, *more))
    if type(ask.made) is bool:
        return interpreter.call_python(WHILE_LOOP, args, kwargs)
    if type(ask.made) not in TENSORS or ask.made.dim() or ask.made.dtype is not torch.bool:
        raise _raised("while_loop: cond_fn must return a boolean scalar tensor or a boolean")
    regions.insert(0, as_region(interpreter, ask, [ask.made], [result_type(ask.made)]))
    own = [interpreter.tracer.value_of(fake) for fake in inner]
    reads = dict.fromkeys(v for region in regions for v in region.reads if v not in own)
    touched, tracer = {**turn.touched, **ask.touched}, interpreter.tracer
    op = region_operator(interpreter, RegionKind.WHILE, regions, (*own, *reads), flows)
    fakes = [*carried, *region_operands(interpreter, tuple(reads), touched, turn.begun, op)]
    begun, _ = tracer.bind_tracked(carried)
    begun = [tracer.recorder.restride(value, kind) for value, kind in zip(begun, kinds)]
    results = call_recorded(interpreter, op, fakes, [*begun, *reads], kinds, turn.calls)
    return _rebuilt(turn.made, iter(results))  # a tuple, a list or one tensor, after no turn, too


# --- private ---------------------------------------------------------------------------------


def _check_turn(made: Any, carried: list[TracedTensor]) -> None:
    """Raise what PyTorch does where a turn gives something else than it was given."""
    if type(made) not in (tuple, list) or len(made) != len(carried):
        raise _raised("while_loop: body_fn should return as many elements as it is given")
    for before, after in zip(carried, made):
        if type(after) not in TENSORS or (before.shape, before.dtype, before.device) != (
            after.shape,
            after.dtype,
            after.device,
        ):
            raise _raised("while_loop: body_fn gives a tensor of another shape, dtype or device")


def _check_number(interpreter: Interpreter, predicate: object) -> None:
    """Refuse a predicate that has a truth and is no number."""
    cls = interpreter.guard_context.type_of(predicate)
    if not issubclass(cls, (bool, int, float, SymbolicTruth)):
        shown = predicate if cls in CONSTANTS else f"a {cls.__qualname__}"
        raise _raised(f"Expected pred to be bool or tensor, but got {shown}.")


def _selected(interpreter: Interpreter, predicate: object, first: object, second: object) -> object:
    """The results of two branches, each row of a batch from the one that it takes, as PyTorch's own
    rule for `vmap` has it."""
    _check_alike(first, second)
    pairs = zip(_leaves(first), _leaves(second))
    made = [leaf_call(interpreter, torch.where, (predicate, *pair), {}) for pair in pairs]
    return _rebuilt(first, iter(made))


def _as_truth(interpreter: Interpreter, predicate: Any) -> Any:
    """A tensor of one number as a bool without dimensions."""
    if predicate.dtype is not torch.bool:
        predicate = leaf_call(interpreter, torch.ne, (predicate, 0), {})
    if predicate.dim():
        predicate = leaf_call(interpreter, torch.reshape, (predicate, ()), {})
    return predicate


def _leaves(made: Any) -> list[Any]:
    """The tensors among what a function returned."""
    if type(made) in TENSORS:
        return [made]
    if type(made) is dict:
        made = tuple(made.values())
    if type(made) in (tuple, list):
        return [leaf for item in made for leaf in _leaves(item)]
    return []


def _rebuilt(made: Any, leaves: Iterator[Any]) -> object:
    """The same with other tensors."""
    if type(made) in TENSORS:
        return next(leaves)
    if type(made) is dict:
        return {key: _rebuilt(item, leaves) for key, item in made.items()}
    if type(made) in (tuple, list):
        return type(made)([_rebuilt(item, leaves) for item in made])
    return made


def _check_memory(trace: FunctionTrace) -> None:
    """Refuse results that share memory with what existed before, or with each other."""
    seen: set[int] = set()
    for leaf in _leaves(trace.made):
        base = leaf.place.base or leaf.place
        if base.input_index >= 0 or base.value.index < trace.first or id(base) in seen:
            raise _refused("a result shares memory with an operand or with another result")
        seen.add(id(base))


def _check_alike(first: Any, second: Any) -> None:
    """Raise what PyTorch does where branches give results of other kinds than each other."""
    if type(first) in TENSORS and type(second) in TENSORS:
        if (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device):
            return
        raise _refused("a branch gives a tensor of another shape, dtype or device than the other")
    if type(first) is type(second) and type(first) in (tuple, list):
        if len(first) != len(second):
            raise _refused("a branch gives more results than the other")
        for pair in zip(first, second):
            _check_alike(*pair)
        return
    if type(first) is type(second) is dict:
        if list(first) != list(second):
            raise _refused("a branch gives a dict with other keys than the other")
        for key in first:
            _check_alike(first[key], second[key])
        return
    if type(first) is type(second) and type(first) in CONSTANTS and first == second:
        return
    if {type(first), type(second)} <= {TracedTensor, *CONSTANTS, tuple, list, dict}:
        raise _refused("a branch gives another kind of result than the other")
    raise BreakRequested("condition", "its branches give other kinds of results")


def _refused(what: str) -> ProgramRaised:
    return _raised(f"torch.cond: {what}")


def _raised(message: str) -> ProgramRaised:
    """What PyTorch raises, which eager raises by its own words when the frame runs there."""
    return ProgramRaised(RuntimeError(message))
