"""Passes: named transformations of a program, and the manager that runs them in order.

A pass is a row of a table: what it is called, what it does, for which targets or options it runs.
The manager times each pass, says which of them changed nothing, and where asked checks the program
behind every one: a rule that a pass breaks is a fault that names the pass, not the stage in which
somebody noticed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeAlias, TypeVar, final

from braze.errors import InvalidIR
from braze.frozen import frozen

Program = TypeVar("Program")
Context = TypeVar("Context")

# Told of each pass that ran: its stage, its name, its seconds, whether it changed the program; the
# program behind it, and what the passes share.
NotePass: TypeAlias = Callable[[str, str, float, bool, Any, Any], None]

FAILED_PASS = "failed_pass"  # the attribute of an exception: the name of the pass that it left


class InvalidProgram(Exception):
    """A verifier found that a program breaks a rule of its representation."""


@final
@frozen
class Pass(Generic[Program, Context]):
    """One transformation.

    run: takes a program and what the passes of one compile share, gives the program that computes
        the same. applies: whether the pass is for such a context (a target, options).
    keeps_rounding: false where other kernels of a library compute behind the pass, which round in
        another order.
    """

    name: str
    run: Callable[[Program, Context], Program]
    applies: Callable[[Context], bool] = lambda context: True
    keeps_rounding: bool = True


@final
class PassManager(Generic[Program, Context]):
    """Runs the passes of one stage.

    verify: raises InvalidProgram where a program breaks a rule; None where nothing is checked.
    """

    def __init__(
        self,
        stage: str,
        verify: Callable[[Program, Context], None] | None = None,
        note: NotePass | None = None,
    ) -> None:
        self._stage = stage
        self._verify = verify
        self._note = note

    def run(
        self, passes: Iterable[Pass[Program, Context]], program: Program, context: Context
    ) -> Program:
        """The program behind all passes that apply. Raises InvalidIR, which names the pass."""
        for each in passes:
            if each.applies(context):
                program = self._run_one(each, program, context)
        return program

    def _run_one(self, each: Pass[Program, Context], program: Program, context: Context) -> Program:
        before, began = _identity(program), time.perf_counter()
        try:
            program = each.run(program, context)  # a pass may empty the list that it is given
        except Exception as error:
            setattr(error, FAILED_PASS, each.name)
            raise
        if self._note is not None:
            seconds = time.perf_counter() - began
            changed = _identity(program) != before
            self._note(self._stage, each.name, seconds, changed, program, context)
        if self._verify is not None:
            try:
                self._verify(program, context)
            except InvalidProgram as error:
                invalid = InvalidIR(self._stage, f"pass '{each.name}': {error}")
                setattr(invalid, FAILED_PASS, each.name)
                raise invalid from error
        return program


def _identity(program: object) -> int | tuple[int, ...]:
    """What is the same as long as no pass makes another object, or another list of statements."""
    return tuple(map(id, program)) if isinstance(program, list) else id(program)
