"""Capture's values, for the instructions whose meaning is written once for all kinds of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from braze.capture.calls.c_functions import call_seen
from braze.capture.frames.dispatch_table import opcode
from braze.capture.frames.frame import Frame
from braze.capture.objects.attribute_load import load_attribute, load_method
from braze.capture.objects.attribute_store import delete_attribute, store_attribute
from braze.capture.objects.formatting import format_value
from braze.capture.objects.items import delete_item, get_item, store_item
from braze.capture.objects.iteration import iterator_of
from braze.capture.objects.operators import (
    COMPARISONS,
    OPERATORS,
    UNARY,
    binary,
    contains,
    is_same,
    unary,
)
from braze.capture.objects.runtime_asserts import DECIDED
from braze.capture.objects.truth import truth
from braze.capture.opcodes.exceptions import special_method
from braze.capture.opcodes.variables import read_global, write_global
from braze.capture.state.lazy_strings import joined
from braze.capture.state.side_effects import DELETED
from braze.capture.training.if_conversion import took_both
from braze.compat.python.bytecode_versions import BINARY_SIGNS
from braze.compat.python.opcode_semantics import MEANINGS
from braze.tracing.symbolic.symbolic_float import SymbolicFloat

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@final
class AbstractValues:
    """The domain of fake tensors: what is asked of them is recorded or guarded. The first argument
    of
    each operation is the interpreter."""

    operators: Sequence[Any] = [OPERATORS.get(sign) for sign in BINARY_SIGNS]
    unary_operators: Mapping[str, Any] = {
        "UNARY_NOT": None,
        "UNARY_NEGATIVE": UNARY["__neg__"],
        "UNARY_POSITIVE": UNARY["__pos__"],
        "UNARY_INVERT": UNARY["__invert__"],
    }
    binary = staticmethod(binary)
    is_same = staticmethod(is_same)
    contains = staticmethod(contains)
    get_item = staticmethod(get_item)
    store_item = staticmethod(store_item)
    delete_item = staticmethod(delete_item)
    get_attribute = staticmethod(load_attribute)
    get_method = staticmethod(load_method)
    store_attribute = staticmethod(store_attribute)
    delete_attribute = staticmethod(delete_attribute)
    special = staticmethod(special_method)
    get_global = staticmethod(read_global)
    store_global = staticmethod(write_global)
    iterate = staticmethod(iterator_of)
    format = staticmethod(format_value)

    @staticmethod
    def unary(interpreter: Interpreter, operator: Any, value: object, /) -> object:
        """`operator value`; None stands for `not`."""
        if operator is None:
            return not truth(interpreter, value)
        return unary(interpreter, operator, value)

    @staticmethod
    def compare(interpreter: Interpreter, frame: Frame, sign: str, as_bool: bool, /) -> None:
        """A comparison of the two topmost operands, which may be of a branch whose both sides are
        taken."""
        operands = frame.stack[-2:]
        if SymbolicFloat in map(type, operands) and took_both(interpreter, frame, sign, *operands):
            return
        right = frame.stack.pop()
        result = binary(interpreter, COMPARISONS[sign], frame.stack[-1], right)
        if as_bool and type(result) not in DECIDED:  # of these the jump behind it asks the truth
            result = truth(interpreter, result)
        frame.stack[-1] = result

    @staticmethod
    def delete_global(interpreter: Interpreter, frame: Frame, name: str, /) -> None:
        """`del name`, of a global that there is."""
        read_global(interpreter, frame, name)
        write_global(interpreter, frame, name, DELETED)

    @staticmethod
    def make_set(interpreter: Interpreter, items: list[object], /) -> object:
        """A set, whose items are compared with each other."""
        interpreter.guard_context.guard_identities(items)
        return call_seen(interpreter, set, (items,), {})

    @staticmethod
    def make_dict(interpreter: Interpreter, pairs: list[tuple[object, object]], /) -> object:
        """A dict, whose keys are compared with each other."""
        interpreter.guard_context.guard_identities([key for key, _ in pairs])
        return call_seen(interpreter, dict, (pairs,), {})

    @staticmethod
    def join(interpreter: Interpreter, parts: list[Any], /) -> Any:
        """The parts of an f-string as one text."""
        return joined(parts)

    @staticmethod
    def convert(
        interpreter: Interpreter, value: object, convert: Callable[[object], str] | None, /
    ) -> Any:
        """What `!s`, `!r` or `!a` makes of a value."""
        return format_value(interpreter, value, convert, "")


for _name, _meaning in MEANINGS.items():
    opcode(_name)(_meaning(AbstractValues()))
