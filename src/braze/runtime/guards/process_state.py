"""Guards on what the process answers: thread counts, precisions, flags of libraries."""

from __future__ import annotations

from typing import Any

from braze.ir.captured.guard import Guard
from braze.runtime.guards.codegen import SourceWriter
from braze.runtime.guards.messages import Values, short_text


def write_answer(writer: SourceWriter, guard: Guard) -> str:
    """The text of a call that asks again."""
    writer.namespace["same_answer"] = same_answer
    owner = "" if guard.source is None else f", {writer.read(guard.source)}"
    return f"same_answer({writer.constant(guard.expected)}{owner})"


def same_answer(asked: tuple[Any, tuple[Any, ...], Any], *owner: Any) -> bool:
    """Whether a question is answered as it was: by a value of the same class that is equal."""
    function, arguments, expected = asked
    answer = function(*owner, *arguments)
    return answer is expected or (type(answer) is type(expected) and bool(answer == expected))


def explain_answer(guard: Guard, value: object, others: Values) -> str | None:
    """What was asked, and what the answer was and is; None where it is the same."""
    function, arguments, expected = guard.expected
    owner = () if guard.source is None else (value,)
    if same_answer(guard.expected, *owner):
        return None
    name = f"{function.__name__}({', '.join(map(repr, arguments))})"
    where = f" of '{guard.source}'" if owner else ""
    now = short_text(function(*owner, *arguments))
    return f"{name}{where} was {short_text(expected)} and is {now}"
