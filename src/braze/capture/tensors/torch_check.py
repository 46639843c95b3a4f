"""What a program promises about numbers that are known only when it runs, and what it asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from braze.capture.frames.control_signals import BreakRequested
from braze.shapes.data_symbols import SymbolicTruth

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def promise(interpreter: Interpreter, condition: SymbolicTruth, raises: bool = True) -> bool:
    """Take a condition as true; the program checks it when it runs. Of sizes of inputs it becomes
    a guard: False where it does not hold of those at hand. raises: the program raises where it does
    not hold."""
    facts, relation = condition.facts, condition.relation
    if facts.data is None or not facts.data.concerns(facts.current(relation.expr)):
        return facts.promise(relation)
    facts.data.check(relation, "the program promises", raises=raises)
    return True


def truth_of(interpreter: Interpreter, condition: SymbolicTruth) -> bool:
    """The truth of a condition on such numbers: an assertion is a promise, that sizes fit is
    taken as one in PyTorch's functions, all else breaks."""
    frame = interpreter.frames[-1]
    ahead = [step[1] for step in frame.steps[frame.index : frame.index + 2]]
    if ahead and ahead[0].name == "POP_JUMP_IF_TRUE":  # behind TO_BOOL
        del ahead[0]
    if ahead and ahead[0].name == "LOAD_CONST" and ahead[0].value is AssertionError:
        return promise(interpreter, condition)
    if frame.globals.get("__name__") == _LIBRARY and condition.relation.kind != ">=":
        equal = condition if condition.relation.kind == "==" else negated(condition)
        return promise(interpreter, equal, raises=False) is (condition is equal)
    condition.facts.refuse_unseen(condition.relation)
    raise BreakRequested("data-dependent-size", f"whether {condition.relation}")


def negated(condition: SymbolicTruth) -> SymbolicTruth:
    """What holds where the condition does not."""
    return SymbolicTruth(condition.facts, condition.relation.negated())


# Losses ask whether sizes are equal, and warn or raise where they are not.
_LIBRARY = "torch.nn.functional"
