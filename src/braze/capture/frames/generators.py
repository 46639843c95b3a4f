"""Generators of the program, as real iterators that resume an interpreted frame."""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, final

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised, chain
from braze.capture.frames.frame import Frame
from braze.capture.state.string_escape import handed_over
from braze.compat.python.bytecode_versions import BYTECODE
from braze.errors import CaptureError

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# From Python 3.12 a handler with this intrinsic is around the whole body of every generator.
STOPITERATION_ERROR = 3
# What hands an exception on; CLEANUP_THROW is around a `yield from` since Python 3.12.
_RAISE_ON = frozenset({"RERAISE", "CLEANUP_THROW"})
# What the head of an except clause does before it compares, and what its end does.
_ONLY_MATCHING = frozenset({"PUSH_EXC_INFO", "LOAD_GLOBAL", "COPY", "POP_EXCEPT"})


@final
class Suspension:
    """What a generator's frame knows of it: whether it stopped at a yield (else it returned).
    The frame does not hold the generator, so that one that is dropped is closed at once."""

    __slots__ = ("suspended",)

    def __init__(self) -> None:
        self.suspended = False


@final
class InlinedGenerator:
    """A suspended frame. Native code may iterate it like any generator.

    call: the function, args and kwargs that made it; made_at: the step of the outermost loop.
    """

    # Of one whose `__init__` was interrupted.
    _interpreter: Any = None
    started = _running = False

    def __init__(self, interpreter: Interpreter, frame: Frame, call: tuple[Any, Any, Any]) -> None:
        self._interpreter = interpreter
        self.frame = frame
        self.call = call
        self.made_at = interpreter.outer_step
        self._suspension = frame.generator = Suspension()
        interpreter.generators.append(weakref.ref(self))
        self.finished = False
        function = call[0]
        self.__name__, self.__qualname__ = function.__name__, function.__qualname__

    def __iter__(self) -> Iterator[object]:
        return self

    def __next__(self) -> object:
        return handed_over(self._interpreter.reader, self.send(None))

    def send(self, value: object, /) -> object:
        """Resume with a value; StopIteration with the result when the frame returns."""
        self._check_idle()
        if self.finished:
            raise StopIteration
        if self.started:
            receiver = self._delegate()
            if type(receiver) is InlinedGenerator:
                return self._pass_on(receiver.send, value)
            self.frame.stack.append(value)
        elif value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        self.started = True
        return self._resume()

    def throw(self, kind: object, value: object = None, traceback: object = None, /) -> object:
        """Raise an exception where the frame waits, or where what it yields from waits."""
        exception = _exception(self._interpreter, kind, value, traceback)
        self._check_idle()
        receiver = self._delegate()
        if receiver is not None:
            if isinstance(exception, GeneratorExit):
                try:
                    self._close_delegate(receiver)
                except BaseException as problem:
                    exception = problem
            elif (throw := self._method_of(receiver, "throw")) is not None:
                return self._pass_on(partial(self._interpreter.call_raising, throw), exception)
        return self._raise_here(exception)

    def close(self) -> object:
        """Raise GeneratorExit where the frame waits, and let it end."""
        self._check_idle()
        if self.finished or not self.started:
            self.finished = True
            return None
        try:
            self.throw(GeneratorExit())
        except GeneratorExit:
            return None
        except StopIteration as end:
            return end.value if BYTECODE.close_returns_value else None
        raise RuntimeError("generator ignored GeneratorExit")

    @property
    def gi_frame(self) -> None:
        """None behind its end."""
        if self.finished:
            return None
        raise BreakRequested("unseen-callable", "the frame of a generator")

    @property
    def gi_code(self) -> object:
        """The code."""
        return self.frame.code

    @property
    def gi_running(self) -> bool:
        """Whether it is being run."""
        return self._running

    @property
    def gi_suspended(self) -> bool:
        """Whether it stopped at a yield."""
        return self._suspension.suspended and not self.finished

    @property
    def gi_yieldfrom(self) -> object:
        """What it yields from."""
        return self._delegate()

    def waits_to_clean_up(self) -> bool:
        """Whether it is suspended in a `try` or `with`, whose end runs when it is thrown away."""
        if self.finished or not self.started:
            return False
        return _acts_on_exit(self.frame)

    def __del__(self) -> None:
        try:
            self._end_dropped()
        except BaseException as problem:  # Python would print it and go on: an interrupt too
            self._interpreter.missed = problem

    # --- private -----------------------------------------------------------------------------

    def _end_dropped(self) -> None:
        interpreter = self._interpreter
        if interpreter is None or interpreter.over or self._running or not self.waits_to_clean_up():
            return
        try:
            self.close()
        except Exception as problem:
            text = f"an exception that a dropped generator raises: {problem!r}"
            raise BreakRequested("unsupported-function", text) from None

    def _check_idle(self) -> None:
        if self._running:
            raise ValueError("generator already executing")

    def _delegate(self) -> object:
        """The iterator of the `yield from` at which the frame waits, or None."""
        frame = self.frame
        if self.finished or not self._suspension.suspended:
            return None
        waiting = frame.index - 1
        if waiting > 0 and frame.steps[waiting - 1][1].name == "SEND":
            return frame.stack[-BYTECODE.iterator_slots]
        return None

    def _close_delegate(self, receiver: object) -> None:
        close = self._method_of(receiver, "close")
        if close is not None:
            self._running = True
            try:
                self._interpreter.call_raising(close)
            finally:
                self._running = False

    def _method_of(self, receiver: object, name: str) -> object:
        """A method of what the frame delegates to, or None."""
        try:
            return self._interpreter.attribute(receiver, name)
        except ProgramRaised as raised:
            problem = raised.exception
        if isinstance(problem, AttributeError):
            return None
        raise problem

    def _pass_on(self, receive: Callable[[object], object], value: object) -> object:
        """Send or throw something to what the frame yields from: what that yields goes straight
        to the caller. Where it ends the frame goes on."""
        self._running = True
        self._suspension.suspended = False
        frames = self._interpreter.frames
        depth = len(frames)
        frames.append(self.frame)  # as the caller of what it delegates to
        try:
            result = receive(value)
            self._suspension.suspended = True
            return result
        except StopIteration as end:
            returned = end.value
        except BaseException as problem:
            known = isinstance(problem, Exception) or id(problem) in self._interpreter.raised
            if not known or isinstance(problem, (CaptureError, RecursionError)):
                raise
            del frames[depth:]
            self._running = False
            return self._raise_here(problem)
        finally:
            del frames[depth:]
            self._running = False
        frame = self.frame
        if not BYTECODE.send_keeps_receiver:
            frame.stack.pop()
        frame.stack.append(returned)
        frame.index = frame.steps[frame.index - 2][1].target
        return self._resume()

    def _raise_here(self, exception: BaseException) -> object:
        self._interpreter.raised.setdefault(
            id(exception), (exception, self._interpreter.outer_step)
        )
        if self.started and not self.finished:
            handled = self.frame.handled
            chain(exception, handled[-1] if handled else self._interpreter.handled())
        region: Any = self.frame.current[1].region
        if self.finished:
            _raise(exception)
        if not self.started or region is None:
            self.finished = True
            converts = self.started or BYTECODE.unstarted_generator_converts
            _raise(_out_of_generator(exception) if converts else exception)
        del self.frame.stack[region.depth :]
        if region.push_offset:
            self.frame.stack.append(self.frame.current[1].offset)
        self.frame.stack.append(exception)
        self.frame.index = region.target
        return self._resume()

    def _resume(self) -> object:
        self._suspension.suspended = False
        self._running = True
        problem: BaseException | None = None
        try:
            value = self._interpreter.run(self.frame)
        except ProgramRaised as raised:
            problem = raised.exception
        finally:
            self._running = False
        if problem is not None:
            self.finished = True
            raise _out_of_generator(problem)
        if self._suspension.suspended:
            return value
        self.finished = True
        raise StopIteration() if value is None else StopIteration(value)


def _out_of_generator(problem: BaseException) -> BaseException:
    """The exception that the caller of a generator gets for one that its frame let out: not one
    that says that the generator has ended."""
    if not isinstance(problem, StopIteration):
        return problem
    error = RuntimeError("generator raised StopIteration")
    error.__cause__ = error.__context__ = problem
    return error


def _raise(exception: BaseException) -> None:
    raise exception


def _exception(
    interpreter: Interpreter, kind: object, value: object, traceback: object
) -> BaseException:
    """The exception of `throw(kind, value, traceback)`."""
    if isinstance(kind, type) and issubclass(kind, BaseException):
        if isinstance(value, kind):
            return value
        given = () if value is None else value if isinstance(value, tuple) else (value,)
        exception = interpreter.call_raising(kind, *given)
        if not isinstance(exception, BaseException):
            raise TypeError(
                f"calling {kind!r} should have returned an instance of BaseException, "
                f"not {type(exception)!r}"
            )
        return exception
    if not isinstance(kind, BaseException):
        name = type(kind).__name__
        raise TypeError(
            f"exceptions must be classes or instances deriving from BaseException, not {name}"
        )
    if value is not None:
        raise TypeError("instance exception may not have a separate value")
    return kind


def begin_expression(interpreter: Interpreter, frame: Frame) -> None:
    """Carry out what a generator expression does when it is made."""
    if not BYTECODE.expression_iterates:
        return
    for step in frame.steps:
        if step[1].name == "RETURN_GENERATOR":
            break
        frame.index += 1
        frame.current = step
        step[0](interpreter, frame, step[1])


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
