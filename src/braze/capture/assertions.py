"""Branches on tensors, and on numbers that the program computes, whose other side only raises:
`assert (x > 0).all()`, the validation of arguments in `torch.distributions`.

    if not torch._is_all_true(valid):        %7: bool[] = _is_all_true(%6)
        raise ValueError(...)                ... a result of the graph; it has to be true

Capture goes on as if nothing was raised. The condition becomes a result of the graph, looked at
before anything is written or returned; where it is otherwise the frame runs eagerly, and raises
what it raises. Refused where the graph itself writes to its inputs: that cannot be taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from braze.capture.frames import Frame
from braze.capture.promises import negated, promise
from braze.capture.recipes import RecipeWriter
from braze.capture.signals import BreakRequested
from braze.capture.truth import truth
from braze.compat.bytecode import Instruction, ends_by_raising
from braze.ir.frame import Check, FromGraph
from braze.ir.graph import Graph
from braze.ir.origin import Origin
from braze.shapes.data_symbols import SymbolicTruth
from braze.standins.standin import Place, Standin, new_standin

_OF_DATA = ("data-dependent-branch", "data-dependent-size")


@final
@dataclass(frozen=True, slots=True, eq=False)
class Assumed:
    """A tensor as it was at a step of the outermost loop, and its assumed truth."""

    condition: Standin
    holds: bool
    step: int
    origin: Origin


def decide(
    interpreter: Any,
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
    condition = new_standin(Place(value.place.type, interpreter.tracer.value_of(value)))
    step, origin = interpreter.outer_step, interpreter.origin()
    interpreter.assumed.append(Assumed(condition, holds, step, origin))
    return holds


def _may_assume(interpreter: Any, value: Any) -> bool:
    """A user's backend gets the graph of what its program says, and no more. Comparisons of numbers
    that the program computes are checks of their own."""
    if type(value) is SymbolicTruth:
        return True
    return type(value) is Standin and not interpreter.transforms and interpreter.looks_at_results


def finished_checks(interpreter: Any, writer: RecipeWriter) -> tuple[Check, ...]:
    """The assumptions as results of the graph."""
    checks = []
    for one in interpreter.assumed:
        recipe = writer.result(one.condition)
        assert isinstance(recipe, FromGraph)
        checks.append(Check(recipe.index, one.holds, one.origin))
    return tuple(checks)


def check_unwritten(interpreter: Any, graph: Graph) -> None:
    """Break at the first assumption where the graph writes to its inputs."""
    if interpreter.assumed and graph.mutations:
        first = interpreter.assumed[0]
        detail = "one side raises, and the graph writes to its inputs"
        problem = BreakRequested("data-dependent-branch", detail)
        problem.step, problem.origin = first.step, first.origin
        raise problem
