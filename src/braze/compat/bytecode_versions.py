"""What differs between the bytecodes of the Python versions that Braze captures, as one table."""

from __future__ import annotations

import sys
from opcode import _nb_ops  # type: ignore[attr-defined]
from typing import final

from braze.frozen import frozen


@final
@frozen
class BytecodeVersion:
    """Layout facts of one Python version.

    callable_first: CALL's operands are callable, self-or-NULL (3.13), not NULL-or-method first.
    method_flag: LOAD_ATTR's lowest bit asks for a method pair (from 3.12).
    for_iter_keeps_iterator: an exhausted FOR_ITER leaves the iterator for END_FOR (from 3.12).
    compare_shift: COMPARE_OP's operator is `arg >> compare_shift`.
    compare_to_bool_bit: COMPARE_OP's bit that asks for a bool (3.13), or 0.
    comprehension_restores_locals: comprehensions are inlined (from 3.12).
    has_line_number_field: `dis.Instruction.line_number` is there (3.13).
    function_attributes_apart: MAKE_FUNCTION takes no flags, SET_FUNCTION_ATTRIBUTE does (3.13).
    send_keeps_receiver: an exhausted SEND leaves the receiver for END_SEND (from 3.12).
    close_returns_value: `generator.close()` gives what the generator returned (3.13).
    frame_locals_are_live: a frame's `f_locals` goes on showing its variables (3.13), no copy.
    set_name_adds_note: what `__set_name__` raises gets a note (3.12), not another error around it.
    """

    callable_first: bool
    method_flag: bool
    for_iter_keeps_iterator: bool
    compare_shift: int
    compare_to_bool_bit: int
    comprehension_restores_locals: bool
    has_line_number_field: bool
    function_attributes_apart: bool
    send_keeps_receiver: bool
    set_name_adds_note: bool
    close_returns_value: bool
    frame_locals_are_live: bool


_VERSIONS: dict[tuple[int, int], BytecodeVersion] = {
    (3, 11): BytecodeVersion(
        False, False, False, 0, 0, False, False, False, False, False, False, False
    ),
    (3, 12): BytecodeVersion(False, True, True, 4, 0, True, False, False, True, True, False, False),
    (3, 13): BytecodeVersion(True, True, True, 5, 16, True, True, True, True, True, True, True),
}


def bytecode_version(version: tuple[int, int]) -> BytecodeVersion:
    """The layout facts of a Python version; RuntimeError for one that is not in the table."""
    try:
        return _VERSIONS[version]
    except KeyError:
        known = ", ".join(".".join(map(str, key)) for key in _VERSIONS)
        raise RuntimeError(
            f"Braze captures the bytecode of Python {known}; this is {version[0]}.{version[1]}. "
            "Use one of those versions."
        ) from None


# What no code object holds that a function runs: CPython's own frames around those of Python, and
# what its compiler or its optimiser writes in the place of others.
NEVER_INTERPRETED = frozenset(
    {"INTERPRETER_EXIT", "EXIT_INIT_CHECK", "ENTER_EXECUTOR", "RESERVED", "CACHE"}
)

BYTECODE = bytecode_version(sys.version_info[:2])

# BINARY_OP's argument -> the operator's sign.
BINARY_SIGNS: tuple[str, ...] = tuple(sign for _, sign in _nb_ops)
