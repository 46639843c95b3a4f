"""Generators of the program, as real iterators that resume an interpreted frame."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any, final

from braze.capture.frames import Frame
from braze.capture.signals import ProgramRaised

# From Python 3.12 a handler with this intrinsic is around the whole body of every generator.
STOPITERATION_ERROR = 3
# What hands an exception on; CLEANUP_THROW is around a `yield from` since Python 3.12.
_RAISE_ON = frozenset({"RERAISE", "CLEANUP_THROW"})
# What the head of an except clause does before it compares, and what its end does.
_ONLY_MATCHING = frozenset({"PUSH_EXC_INFO", "LOAD_GLOBAL", "COPY", "POP_EXCEPT"})


@final
class InlinedGenerator:
    """A suspended frame. Native code may iterate it like any generator.

    suspended: the frame stopped at a yield (else it returned, or has not started).
    call: the function, args and kwargs that made it; made_at: the step of the outermost loop.
    """

    def __init__(self, interpreter: Any, frame: Frame, call: tuple[Any, Any, Any]) -> None:
        self._interpreter = interpreter
        self.frame = frame
        self.call = call
        self.made_at = interpreter.outer_step
        frame.generator = self
        interpreter.generators.append(self)
        self.started = False
        self.finished = False
        self.suspended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.send(None)

    def send(self, value: Any) -> Any:
        """Resume with a value; StopIteration with the result when the frame returns."""
        if self.finished:
            raise StopIteration
        if self.started:
            self.frame.stack.append(value)
        elif value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        self.started = True
        return self._resume()

    def throw(self, kind: Any, value: Any = None, traceback: Any = None) -> Any:
        """Raise an exception where the frame waits."""
        exception = kind if isinstance(kind, BaseException) else value
        if exception is None:
            exception = kind()
        elif not isinstance(exception, BaseException):
            exception = kind(exception)
        region = self.frame.current[1].region
        if self.finished or not self.started or region is None:
            self.finished = True
            raise exception
        del self.frame.stack[region.depth :]
        if region.push_offset:
            self.frame.stack.append(self.frame.current[1].offset)
        self.frame.stack.append(exception)
        self.frame.index = region.target
        return self._resume()

    def close(self) -> None:
        """Raise GeneratorExit where the frame waits, and let it end."""
        if self.finished or not self.started:
            self.finished = True
            return
        try:
            self.throw(GeneratorExit())
        except (GeneratorExit, StopIteration):
            return
        raise RuntimeError("generator ignored GeneratorExit")

    def waits_to_clean_up(self) -> bool:
        """Whether it is suspended in a `try` or `with`, whose end runs when it is thrown away."""
        if self.finished or not self.started:
            return False
        return _acts_on_exit(self.frame)

    def _resume(self) -> Any:
        self.suspended = False
        try:
            value = self._interpreter.run(self.frame)
        except ProgramRaised as raised:
            self.finished = True
            exception = raised.exception
            if isinstance(exception, StopIteration):
                raise RuntimeError("generator raised StopIteration") from exception
            raise exception from None
        if self.suspended:
            return value
        self.finished = True
        raise StopIteration(value)


def _acts_on_exit(frame: Frame) -> bool:
    """Whether GeneratorExit, raised where the frame waits, would run anything but clauses for
    other exceptions."""
    region = frame.current[1].region
    index = -1 if region is None else region.target
    while index >= 0:
        instruction = frame.steps[index][1]
        if instruction.name == "CALL_INTRINSIC_1" and instruction.arg == STOPITERATION_ERROR:
            return False
        if instruction.name == "CHECK_EXC_MATCH":
            kind = frame.steps[index - 1][1]
            caught = getattr(builtins, str(kind.value), BaseException)
            if kind.name != "LOAD_GLOBAL" or issubclass(GeneratorExit, caught):
                return True
            index = frame.steps[index + 1][1].target
        elif instruction.name in _RAISE_ON:
            index = -1 if instruction.region is None else instruction.region.target
        elif instruction.name in _ONLY_MATCHING:
            index += 1
        else:
            return True
    return False
