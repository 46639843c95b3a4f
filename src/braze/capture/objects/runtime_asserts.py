"""Branches on tensors, and on numbers that the program computes, whose other side only raises:
`assert (x > 0).all()`, the validation of arguments in `torch.distributions`.

    if not torch._is_all_true(valid):        %7: bool[] = _is_all_true(%6)
        raise ValueError(...)                ... a result of the graph; it has to be true

Capture goes on as if nothing was raised. The condition becomes a result of the graph, looked at
before anything is written or returned; where it is otherwise the frame runs eagerly, and raises
what it raises. Where the graph itself writes to its inputs, which cannot be taken back, it looks
at the condition itself: as a number that it computes, whose check comes before what it writes. So
it does before an operator with effects; behind one, such a branch breaks the graph.

So it is with numbers that the graph computes, where Python may raise:

    math.sqrt(x.item())       x < 0 has to be false
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch

from braze.capture.exit.reconstruction import Reconstructor
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.frames.frame import Frame
from braze.capture.objects.truth import truth
from braze.capture.state.guard_context import TENSORS
from braze.capture.tensors.torch_check import negated, promise
from braze.compat.python.bytecode import Instruction, ends_by_raising
from braze.compat.torch.aten import aten
from braze.compat.torch.dynamo_interop import is_optimizer
from braze.frozen import frozen
from braze.ir.captured.frame import FromGraph, RuntimeCheck
from braze.ir.graphs.graph import Value
from braze.ir.origin import Origin
from braze.shapes.data_symbols import SymbolicTruth
from braze.shapes.facts import Relation
from braze.tracing.errors import DataDependent
from braze.tracing.fake_tensor import Place, TracedTensor, new_fake
from braze.tracing.symbolic.unbacked_sizes import integer_of

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# Of what a branch may be a check.
DECIDED = TENSORS | {SymbolicTruth}
_OF_DATA = ("data-dependent-branch", "data-dependent-size")


@final
@frozen(eq=False)
class AssertedCondition:
    """A tensor as it was at a step of the outermost loop, and its assumed truth.

    of_numbers: numbers are such that Python computes with them.
    """

    condition: TracedTensor
    holds: bool
    step: int
    origin: Origin
    of_numbers: bool = False


def decide(
    interpreter: Interpreter,
    frame: Frame,
    value: Any,
    instruction: Instruction,
    jumps_if: bool,
    ahead: int = 0,
) -> bool:
    """The truth of what a conditional jump asks, which is so many instructions ahead."""
    try:
        return truth(interpreter, value)
    except BreakRequested as problem:
        if problem.code not in _OF_DATA or not _may_assume(interpreter, value):
            raise
        jump_raises = ends_by_raising(frame.code, instruction.target)
        if jump_raises is ends_by_raising(frame.code, frame.index + ahead):
            raise
    holds = jumps_if is not jump_raises
    if type(value) is SymbolicTruth:
        return promise(interpreter, value if holds else negated(value)) is holds
    condition = new_fake(Place(value.place.type, interpreter.tracer.value_of(value)))
    step, origin = interpreter.outer_step, interpreter.origin()
    interpreter.assumed.append(AssertedCondition(condition, holds, step, origin))
    return holds


def _may_assume(interpreter: Interpreter, value: object) -> bool:
    """A user's backend gets the graph of what its program says, and no more. Comparisons of numbers
    that the program computes are checks of their own."""
    if type(value) is SymbolicTruth:
        return True
    return (
        type(value) is TracedTensor and not interpreter.transforms and interpreter.looks_at_results
    )


def assume_computable(interpreter: Interpreter, record: Callable[[], Value]) -> None:
    """Take it that a condition on numbers holds, without which Python or an operator raises, or
    Python gives a complex number. Optimizers count steps from one: of what they compute it does
    hold if the numbers from outside (rates) are moderate, which is guarded; and nothing is
    recorded, which would be a dozen calls a parameter."""
    if is_optimizer(interpreter.frames[-1].globals) and _are_moderate(interpreter):
        return
    condition: Any = record()
    step, origin = interpreter.outer_step, interpreter.origin()
    if interpreter.assumed and interpreter.assumed[-1].of_numbers:
        last = interpreter.assumed.pop()
        both = (last.condition.place.value, condition)
        condition = interpreter.tracer.recorder.emit(aten.logical_and.default, both, {})
        step, origin = last.step, last.origin
    kept = new_fake(Place(condition.type, condition))
    interpreter.assumed.append(AssertedCondition(kept, True, step, origin, of_numbers=True))


# A rate up to this, divided by what a step's first count leaves of a decay (1 - 0.999), or times
# a square root of it, is one that every dtype holds but float16, which holds it divided by 1/256.
_MODERATE = 255.0


def _are_moderate(interpreter: Interpreter) -> bool:
    """Whether no number from outside that the graph is given is large; guarded of each."""
    found: dict[Any, bool] = interpreter.sizes.moderate
    for source, number in interpreter.guard_context.lifted.items():
        if source not in found:
            found[source] = number <= _MODERATE and number >= -_MODERATE
    return all(found.values())


def finished_checks(interpreter: Interpreter, writer: Reconstructor) -> tuple[RuntimeCheck, ...]:
    """The assumptions as results of the graph, or where it writes to inputs, as checks in it."""
    checks = []
    writes = any(fake.place.version for fake, _ in interpreter.tracer.inputs)
    for one in interpreter.assumed:
        if writes:
            _check_inside(interpreter, one)
            continue
        recipe = writer.result(one.condition)
        assert isinstance(recipe, FromGraph)
        checks.append(RuntimeCheck(recipe.index, one.holds, one.origin))
    return tuple(checks)


def settle_assumptions(interpreter: Interpreter) -> None:
    """Before an operator whose effects nobody can take back: the graph looks at what was assumed so
    far itself, and nothing more is assumed. Behind it the frame cannot be run eagerly instead."""
    assumed, interpreter.assumed = interpreter.assumed, []
    for one in assumed:
        _check_inside(interpreter, one)
    interpreter.looks_at_results = False
    tracer = interpreter.tracer
    tracer.gives_integers = tracer.gives_sizes = False
    tracer.check_number = functools.partial(_refuse_condition, interpreter)


def _refuse_condition(interpreter: Interpreter, record: Callable[[], Value]) -> None:
    if is_optimizer(interpreter.frames[-1].globals) and _are_moderate(interpreter):
        return
    raise DataDependent("a number", "Python may raise here, behind an operator with effects")


def _check_inside(interpreter: Interpreter, one: AssertedCondition) -> None:
    """Make the graph itself look at a condition."""
    tracer = interpreter.tracer
    emit = tracer.recorder.emit
    truth_ = emit(aten.ne.Scalar, (tracer.value_of(one.condition), 0), {})
    number = emit(aten._to_copy.default, (truth_,), {"dtype": torch.int64})
    fake = new_fake(Place(number.type, number))
    size = integer_of(tracer, fake, (0, 1), "a condition")
    data = size.facts.data_symbols()
    message = f"{one.origin}: the program raises here"
    data.check(Relation(size.expr - int(one.holds), "=="), "", message, raises=True)
