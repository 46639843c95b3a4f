"""How the interpreter's parts tell each other that the straight way ended.

Those of the interpreter do not derive from Exception: C code and `except Exception` must let them
pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, final

from braze.ir.captured.source import LocalSource
from braze.ir.origin import UNKNOWN, Origin

_Signal = TypeVar("_Signal", bound=BaseException)


@final
class ProgramRaised(BaseException):
    """The interpreted program raised `exception`; origin: where, once known. again: it was raised
    before and goes on, so that its context stays as it is."""

    def __init__(self, exception: BaseException, *, again: bool = False) -> None:
        super().__init__(exception)
        self.exception = exception
        self.again = again
        self.origin: Origin | None = None


def chain(exception: BaseException, handled: BaseException | None) -> None:
    """Give an exception its context as raising does, unless it has one."""
    if handled is None or handled is exception or exception.__context__ is not None:
        return
    link = slow = handled
    moves = False
    while (context := link.__context__) is not None:
        if context is exception:
            link.__context__ = None
            break
        link = context
        if link is slow:  # the program closed the chain to a ring
            break
        slow = slow.__context__ or slow if moves else slow
        moves = not moves
    exception.__context__ = handled


def without_frames(signal: _Signal) -> _Signal:
    """A signal that is to be kept: with its traceback it would hold the frames that hold it."""
    signal.__traceback__ = signal.__context__ = signal.__cause__ = None
    return signal


@final
class BreakRequested(BaseException):
    """Capture cannot go on past the current instruction.

    code: of the catalogue; detail: what is put into its template.
    step: the number of the instruction, counted from the frame's entry, before which the frame
        can be left; None until the interpreter's outermost loop knows it, -1 where there is none.
    is_at_the_end: the frame cannot be left as it is where it was to be.
    natively: the rest of the frame that is left runs natively.
    is_forbidden: the program says there that a break is an error.
    because: what of which local variables decided it, as `GuardKind.ANSWER` has it.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code, detail)
        self.because: tuple[tuple[LocalSource, tuple[Any, ...]], ...] = ()
        self.code = code
        self.detail = detail
        self.origin: Origin = UNKNOWN
        self.step: int | None = None
        self.is_at_the_end = self.natively = self.is_forbidden = False


@final
class LeaveFrame(BaseException):
    """The step at which a former attempt broke is reached: the state is as it was before it."""


@final
class ReadTooEarly(BaseException):
    """The program reads what a call writes that was put off."""


@final
class LoopTooLong(BaseException):
    """A loop would make too large a graph; loop: its code, and the index of its first step."""

    def __init__(self, loop: tuple[Any, int]) -> None:
        super().__init__(loop)
        self.loop = loop


@final
class SharedWrite(BaseException):
    """The program writes to an input that has elements in common with another."""


@final
class UnrollRequested(BaseException):
    """The function of a loop does more than compute; place: the code that calls the loop's
    operator, and the index of the call's step."""

    def __init__(self, place: tuple[Any, int]) -> None:
        super().__init__(place)
        self.place = place


@final
class LazyModuleCalled(BaseException):
    """A lazy module has no sizes yet; initialize: gives it those, before anything is captured."""

    def __init__(self, initialize: Callable[[], object]) -> None:
        super().__init__()
        self.initialize = initialize


class CannotRebuild(Exception):
    """A value for which there is no recipe; says which, and at which step it was made (-1: not
    known), so that the frame can be left before. code: of the break, in the catalogue."""

    def __init__(self, what: str, made_at: int = -1, code: str = "unbuildable-object") -> None:
        super().__init__(what)
        self.made_at = made_at
        self.code = code
