"""What a program promises about numbers that are known only when it runs, and what it asks."""

from __future__ import annotations

from typing import Any

from braze.capture.signals import BreakRequested
from braze.shapes.data_symbols import SymbolicTruth


def promise(interpreter: Any, condition: SymbolicTruth) -> None:
    """Take a condition as true; the program checks it when it runs."""
    facts = condition.facts
    facts.data_symbols().check(condition.relation, "the program promises")


def truth_of(interpreter: Any, condition: SymbolicTruth) -> bool:
    """The truth of a condition on such numbers: an assertion is a promise, that sizes fit is
    taken as one in PyTorch's functions, all else breaks."""
    frame = interpreter.frames[-1]
    ahead = [step[1].name for step in frame.steps[frame.index : frame.index + 2]]
    if ahead[:1] == ["POP_JUMP_IF_TRUE"]:  # behind TO_BOOL
        del ahead[0]
    if ahead[:1] == ["LOAD_ASSERTION_ERROR"]:
        promise(interpreter, condition)
        return True
    if frame.globals.get("__name__") == _LIBRARY and condition.relation.kind != ">=":
        promise(interpreter, condition if condition.relation.kind == "==" else negated(condition))
        return condition.relation.kind == "=="
    raise BreakRequested("data-dependent-size", f"whether {condition.relation}")


def negated(condition: SymbolicTruth) -> SymbolicTruth:
    """What holds where the condition does not."""
    return SymbolicTruth(condition.facts, condition.relation.negated())


# Losses ask whether sizes are equal, and warn or raise where they are not.
_LIBRARY = "torch.nn.functional"
