"""What differs between the bytecodes of the Python versions that Braze captures, as one table."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import final

from braze.compat.python.stub_gaps import BINARY_OPERATORS
from braze.frozen import frozen


@final
@frozen
class BytecodeVersion:
    """Layout facts of one Python version; those of `_VERSIONS` where it differs from the last.

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
    unstarted_generator_converts: a StopIteration thrown into a generator that has not begun comes
    out as a RuntimeError (3.11).
    set_name_adds_note: what `__set_name__` raises gets a note (3.12), not another error around it.
    exit_slots: stack slots of a context manager's `__exit__`: 2 where it is a method pair (3.14).
    iterator_slots: stack slots of an iterator in a loop: 2 from 3.15, the second an index or NULL.
    expression_iterates: a generator expression asks for the iterator of what it goes through, in
    its own code, before it is suspended (3.15); else the code around it does.
    counts_unpacked: the error of an unpacked list, tuple or dict that is too long tells its length
    (3.14).
    annotates_lazily: annotations are a function's or class's `__annotate__` (3.14).
    tuples_keep_hashes: a tuple asks its items for their hashes once in its life (3.14).
    resume_specializes: code is specialized where RESUME runs, and a profiler is told of the return
    of each function (3.11); else it is specialized from the start, and told of those with a RESUME.
    """

    callable_first: bool = False
    method_flag: bool = False
    for_iter_keeps_iterator: bool = False
    compare_shift: int = 0
    compare_to_bool_bit: int = 0
    comprehension_restores_locals: bool = False
    has_line_number_field: bool = False
    function_attributes_apart: bool = False
    send_keeps_receiver: bool = False
    set_name_adds_note: bool = False
    close_returns_value: bool = False
    frame_locals_are_live: bool = False
    unstarted_generator_converts: bool = True
    exit_slots: int = 1
    iterator_slots: int = 1
    expression_iterates: bool = False
    counts_unpacked: bool = False
    annotates_lazily: bool = False
    tuples_keep_hashes: bool = False
    resume_specializes: bool = False


def _versions() -> dict[tuple[int, int], BytecodeVersion]:
    known = {(3, 11): BytecodeVersion(resume_specializes=True)}
    known[3, 12] = replace(
        known[3, 11],
        method_flag=True,
        for_iter_keeps_iterator=True,
        compare_shift=4,
        comprehension_restores_locals=True,
        send_keeps_receiver=True,
        set_name_adds_note=True,
        unstarted_generator_converts=False,
        resume_specializes=False,
    )
    known[3, 13] = replace(
        known[3, 12],
        callable_first=True,
        compare_shift=5,
        compare_to_bool_bit=16,
        has_line_number_field=True,
        function_attributes_apart=True,
        close_returns_value=True,
        frame_locals_are_live=True,
    )
    known[3, 14] = replace(
        known[3, 13],
        exit_slots=2,
        counts_unpacked=True,
        annotates_lazily=True,
        tuples_keep_hashes=True,
    )
    known[3, 15] = replace(known[3, 14], iterator_slots=2, expression_iterates=True)
    return known


_VERSIONS = _versions()
KNOWN_VERSIONS = tuple(_VERSIONS)


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


def refuse_free_threading(abiflags: str) -> None:
    """RuntimeError where `sys.abiflags` are those of a Python without a global interpreter lock:
    guards read dicts and tensors in C without locks of their own."""
    if "t" in abiflags:
        raise RuntimeError(
            "Braze relies on the global interpreter lock, which this free-threaded Python is built "
            "without. Use a build with the lock: `python3.14`, not `python3.14t`."
        )


# What no code object holds that a function runs: CPython's own frames around those of Python, and
# what its compiler or its optimiser writes in the place of others.
NEVER_INTERPRETED = frozenset(
    "INTERPRETER_EXIT EXIT_INIT_CHECK ENTER_EXECUTOR TRACE_RECORD RESERVED CACHE".split()
)

refuse_free_threading(getattr(sys, "abiflags", ""))
BYTECODE = bytecode_version(sys.version_info[:2])

# BINARY_OP's argument -> the operator's sign.
BINARY_SIGNS: tuple[str, ...] = tuple(sign for _, sign in BINARY_OPERATORS)
