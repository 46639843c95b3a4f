"""`torch.cond` in a graph: both branches are computed, and `torch.where` selects.

    torch.cond(p, f, g, (x,))  ->  where(p, f(where(p, x, x.detach())), g(where(p, x.detach(), x)))

That is the same as running one of them where the branches only compute: no writes, no random
numbers. Gradients of the branch that is not taken may be infinite, and zero times infinity is no
number: so each tensor that a branch reads from outside passes through a gate, which gives it a
gradient of zeros there, whatever comes back. Costly branches are selected in the graph only where
no break is allowed. Refused are, as by PyTorch: branches that give other kinds of results than each
other, that write to what existed before, or whose results share memory with it or each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.calls.handler_registry import answers
from braze.capture.calls.torch_calls import leaf_call
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.objects.truth import truth
from braze.capture.state.guard_context import CONSTANTS, TENSORS
from braze.compat.torch.aten import aten
from braze.compat.torch.higher_order.operators import COND
from braze.ir.graphs.graph import Value, values_in
from braze.ir.graphs.op_effects import has_effects
from braze.ir.types import TensorType
from braze.tracing.fake_tensor import TracedTensor
from braze.tracing.graph_recorder import Call

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_COSTLY = (
    "mm addmm bmm baddbmm addmv mv dot convolution _convolution _scaled_dot_product linalg_ "
    "_fft embedding_bag grid_sampler lstm gru rnn"
).split()


@answers(torch.cond, COND)
def condition(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The branch that a number or a bool chooses; both, where a tensor does."""
    given = dict(zip(("pred", "true_fn", "false_fn", "operands"), args)) | kwargs
    predicate, branches = given["pred"], (given["true_fn"], given["false_fn"])
    operands = tuple(interpreter.side_effects.contents(given.get("operands", ())))
    if type(predicate) not in TENSORS:
        return interpreter.call(branches[not truth(interpreter, predicate)], *operands)
    if predicate.numel() != 1:
        raise _refused("its predicate is not one number")
    if interpreter.transforms:
        raise BreakRequested("condition", "it is transformed by torch.func")
    if predicate.dtype is not torch.bool:
        predicate = leaf_call(interpreter, torch.ne, (predicate, 0), {})
    if predicate.dim():
        predicate = leaf_call(interpreter, torch.reshape, (predicate, ()), {})
    results = []
    for branch, is_taken in zip(branches, (True, False)):
        outer = interpreter.gate
        interpreter.gate = _Gate(interpreter, predicate, is_taken, outer)
        try:
            results.append(_pure_result(interpreter, branch, operands, interpreter.gate))
        finally:
            interpreter.gate = outer
    return _selected(interpreter, predicate, *results)


@final
class _Gate:
    """What the tensors pass through that a branch reads from outside and gradients flow to.

    outer: of the branch that this one is in. own: the calls of the gates themselves, by number.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        predicate: Any,
        is_taken: bool,
        outer: Callable[[Any], Any] | None,
    ) -> None:
        self._interpreter = interpreter
        self._outer = outer
        self._predicate = predicate
        self._is_taken = is_taken
        self._first = interpreter.tracer.recorder.new_value(_type_of(predicate)).index
        self._passed: dict[int, tuple[Any, Any]] = {}
        self.own: set[int] = set()

    def __call__(self, value: Any) -> Any:
        """A value as the branch reads it."""
        cls = type(value)
        if cls is tuple or cls is list:
            return cls(map(self, value))
        if cls is dict:
            return {key: self(item) for key, item in value.items()}
        if cls not in TENSORS or not (value.requires_grad and torch.is_grad_enabled()):
            return value
        base = value.place.base or value.place
        is_new = self._interpreter.tracer.value_of(value).index >= self._first
        if is_new and base.input_index < 0:  # an input may be read here first
            return value
        known = self._passed.get(id(value))
        if known is None:
            known = self._passed[id(value)] = value, self._gated(value)
        return known[1]

    def made(self, base: Any) -> bool:
        """Whether memory is of a tensor that the branch made, by the value that it holds."""
        return bool(base.value.index >= self._first)

    def _gated(self, value: Any) -> Any:
        interpreter, recorder = self._interpreter, self._interpreter.tracer.recorder
        entered, interpreter.gate = interpreter.gate, None
        begun = len(recorder.calls)
        try:
            if self._outer is not None:
                value = self._outer(value)
            still = leaf_call(interpreter, torch.Tensor.detach, (value,), {})
            sides = (value, still) if self._is_taken else (still, value)
            return leaf_call(interpreter, torch.where, (self._predicate, *sides), {})
        finally:
            interpreter.gate = entered
            self.own.update(range(begun, len(recorder.calls)))


def _type_of(tensor: Any) -> TensorType:
    kind: TensorType = tensor.place.type
    return kind


def _check_gradients(recorder: Any, begun: int, gate: _Gate) -> None:
    """Break where a call in a branch reads a tensor from outside that gradients flow to and that
    went through no gate (an argument of a custom autograd function, of an operator in Python)."""
    if not torch.is_grad_enabled():
        return
    calls: Sequence[Call] = recorder.calls
    made: set[Value] = set()
    for call in calls[begun:]:
        made.update(_values(call[3]))
    read: set[Value] = set()
    for number in range(begun, len(calls)):
        if number not in gate.own:
            read.update(v for part in calls[number][1:3] for v in _values(part) if v not in made)
    if not read:
        return
    needing: set[Value] = set()
    for call in calls[:begun]:
        if call[0] is not aten.detach.default and any(
            _needs(value, needing) for part in call[1:3] for value in _values(part)
        ):
            needing.update(_values(call[3]))
    if any(_needs(value, needing) for value in read):
        raise BreakRequested("condition", "gradients flow through a branch, past its gates")


def _needs(value: Value, needing: set[Value]) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType):
        return False
    if not (kind.dtype.is_floating_point or kind.dtype.is_complex):
        return False
    return kind.requires_grad or value in needing


def _values(part: Any) -> list[Value]:
    """The values among a call's arguments or results."""
    if isinstance(part, dict):
        part = tuple(part.values())
    return values_in(part)


def _pure_result(
    interpreter: Interpreter, branch: Callable[..., Any], operands: tuple[Any, ...], gate: _Gate
) -> Any:
    recorder, side_effects = interpreter.tracer.recorder, interpreter.side_effects
    calls, writes = recorder.progress
    state = side_effects.extent()
    effects = _effects(interpreter)
    versions = _versions(interpreter, operands)
    given = interpreter.call(branch, *operands)
    after = _versions(interpreter, operands)  # of inputs, too, that the branch reads first
    is_written = any(version != versions.get(base, 0) for base, version in after.items())
    if side_effects.extent() != state or is_written:
        raise _refused("a branch writes to what existed before")
    if recorder.progress[1] != writes:
        raise BreakRequested("condition", "a branch writes to a tensor")
    _check_memory(gate, given, set())
    result = gate(given)
    if _effects(interpreter) != effects:
        raise BreakRequested("condition", "a branch logs, raises or draws numbers of Python's")
    ops = [call[0] for call in recorder.calls[calls:]]
    if any(has_effects(op) for op in ops):
        raise BreakRequested("condition", "a branch draws random numbers, or has other effects")
    _check_gradients(recorder, calls, gate)
    options = interpreter.request.options
    names = [op.name().partition("::")[2] for op in ops]
    costly = [name for name in names if any(_is_costly(name, word) for word in _COSTLY)]
    if costly and not (options is not None and options.fullgraph):
        raise BreakRequested("condition", f"a branch is costly ({costly[0]}): one is left out")
    return result


def _versions(interpreter: Interpreter, operands: Sequence[Any]) -> dict[int, int]:
    """How often the memory of each operand and of each input was written to."""
    values = [*operands, *interpreter.guard_context.fakes.values()]
    bases = [_base(value) for value in values if type(value) in TENSORS]
    return {id(base): base.version for base in bases}


def _base(tensor: Any) -> Any:
    return tensor.place.base or tensor.place


def _check_memory(gate: _Gate, value: Any, seen: set[int]) -> None:
    """Refuse results that share memory with what existed before the branch, or with each other.
    seen: the bases of results that were checked."""
    if type(value) in (tuple, list, dict):
        for item in value.values() if type(value) is dict else value:
            _check_memory(gate, item, seen)
    if type(value) not in TENSORS:
        return
    base = _base(value)
    if base.input_index >= 0 or not gate.made(base) or id(base) in seen:
        raise _refused("a result of a branch shares memory with an operand or with another result")
    seen.add(id(base))


def _effects(interpreter: Interpreter) -> tuple[int, ...]:
    """How often so far something was put off, drawn or assumed."""
    return len(interpreter.deferred_calls), len(interpreter.draws), len(interpreter.assumed)


def _is_costly(name: str, word: str) -> bool:
    return (
        name.startswith(word) if word[0] == "_" or word[-1] == "_" else name.split(".")[0] == word
    )


def _selected(interpreter: Interpreter, predicate: Any, first: Any, second: Any) -> Any:
    """What `where` gives, item by item. Raises what PyTorch does where the branches give results
    of other kinds than each other."""
    if type(first) in TENSORS and type(second) in TENSORS:
        if (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device):
            return leaf_call(interpreter, torch.where, (predicate, first, second), {})
        raise _refused("a branch gives a tensor of another shape, dtype or device than the other")
    if type(first) is type(second) and type(first) in (tuple, list):
        if len(first) == len(second):
            pairs = zip(first, second)
            return type(first)([_selected(interpreter, predicate, *pair) for pair in pairs])
        raise _refused("a branch gives more results than the other")
    if type(first) is type(second) is dict:
        if list(first) == list(second):
            return {k: _selected(interpreter, predicate, first[k], second[k]) for k in first}
        raise _refused("a branch gives a dict with other keys than the other")
    if type(first) is type(second) and type(first) in CONSTANTS and first == second:
        return first
    if {type(first), type(second)} <= {TracedTensor, *CONSTANTS, tuple, list, dict}:
        raise _refused("a branch gives another kind of result than the other")
    raise BreakRequested("condition", "its branches give other kinds of results")


def _refused(what: str) -> ProgramRaised:
    """What PyTorch raises, which eager raises by its own words when the frame runs there."""
    return ProgramRaised(RuntimeError(f"torch.cond: {what}"))
