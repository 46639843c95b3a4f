"""Guards on NumPy's arrays: their metadata, and that their memory is their own."""

from __future__ import annotations

from braze.compat.numpy.interface import ARRAY, array_facts, is_traceable, lie_apart
from braze.ir.captured.guard import Guard
from braze.runtime.guards.codegen import SourceWriter
from braze.runtime.guards.messages import Values


def is_array_of(value: object, facts: tuple[object, ...]) -> bool:
    """Whether an object is an array of these facts, whose memory a tensor can share."""
    return type(value) is ARRAY and array_facts(value) == facts and is_traceable(value)


def write_array(writer: SourceWriter, guard: Guard) -> str:
    """The text of "is an array like this"."""
    test = writer.constant(is_array_of)
    return f"{test}({writer.read(guard.source)}, {writer.constant(guard.expected)})"


def explain_array(guard: Guard, value: object, others: Values) -> str | None:
    """How the array differs."""
    if is_array_of(value, guard.expected):
        return None
    if type(value) is not ARRAY:
        return f"'{guard.source}' was an array and is a {type(value).__qualname__}"
    return (
        f"array '{guard.source}' mismatch. expected {guard.expected}, actual {array_facts(value)}"
    )


def write_apart(writer: SourceWriter, guard: Guard) -> str:
    """The text of "these arrays and tensors have no bytes in common"."""
    values = "".join(f"{writer.read(source)}, " for source in guard.expected)
    return f"{writer.constant(lie_apart)}(({values}))"


def explain_apart(guard: Guard, value: object, others: Values) -> str | None:
    """That some of them have bytes in common now."""
    if lie_apart(tuple(others)):
        return None
    return "arrays or tensors share memory now and did not"
