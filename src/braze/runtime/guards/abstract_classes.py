"""Guards on what abstract classes say of others: a program may register more of them."""

from __future__ import annotations

from braze.ir.captured.guard import Guard
from braze.runtime.guards.codegen import SourceWriter
from braze.runtime.guards.messages import Values


def write_abstract(writer: SourceWriter, guard: Guard) -> str:
    """The text of a call that asks again."""
    writer.namespace["same_answers"] = same_answers
    return f"same_answers({writer.constant(guard.expected)})"


def same_answers(answers: tuple[tuple[type, type, bool], ...]) -> bool:
    """Whether the abstract classes say what they said."""
    return all(issubclass(cls, abstract) is answer for cls, abstract, answer in answers)


def explain_abstract(guard: Guard, value: object, others: Values) -> str | None:
    """Which class is a subclass now, or is none any more; None where all is as it was."""
    for cls, abstract, answer in guard.expected:
        if issubclass(cls, abstract) is not answer:
            how = "is no longer" if answer else "is now"
            return f"{cls.__qualname__} {how} a subclass of {abstract.__qualname__}"
    return None
