"""Instructions of try, except, raise and with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from braze.capture.frames.control_signals import BreakRequested, ProgramRaised, chain
from braze.capture.frames.dispatch_table import opcode
from braze.capture.frames.frame import Frame
from braze.capture.objects.attribute_load import bind_attribute
from braze.compat.python.bytecode import Instruction
from braze.compat.python.bytecode_versions import BYTECODE
from braze.compat.python.stdlib import name_of_manager
from braze.ir.captured.frame import NULL
from braze.ir.captured.guard import ABSENT
from braze.tracing import DataDependent, Untraceable

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@opcode("PUSH_EXC_INFO")
def push_exc_info(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    exception = frame.stack.pop()
    # CPython saves the exception handled before; a continuation is told the one handled since.
    frame.stack.append(exception)
    frame.stack.append(exception)
    frame.handled.append(exception)


@opcode("POP_EXCEPT")
def pop_except(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    frame.stack.pop()
    if frame.handled:
        frame.handled.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    kinds = interpreter.side_effects.native(frame.stack.pop())
    _caught_classes(kinds)
    exception = frame.stack[-1]
    matches = isinstance(exception, kinds)
    if matches and frame.steps[frame.index + 1][1].name.startswith("STORE_"):  # except ... as e
        _check_text(interpreter, exception)
    frame.stack.append(matches)


def _check_text(interpreter: Interpreter, exception: BaseException) -> None:
    """Break where an exception that the program is about to look at speaks of symbolic sizes: what
    raised it is executed for real, and says which they were."""
    facts = interpreter.sizes.facts
    if facts is None:
        return
    words = {word for arg in exception.args if type(arg) is str for word in _WORD.findall(arg)}
    if words.isdisjoint(map(str, facts.hints)):
        return
    kind = type(exception).__qualname__
    asked = BreakRequested("unbuildable-object", f"the message of the {kind} that was raised")
    asked.step = interpreter.raised[id(exception)][1]
    asked.is_at_the_end = True
    raise asked


_WORD = re.compile(r"[a-z]+[0-9]+")


def _caught_classes(kinds: object) -> tuple[type, ...]:
    """What an `except` names, which Python refuses where they are no exceptions."""
    each = kinds if isinstance(kinds, tuple) else (kinds,)
    if not all(isinstance(k, type) and issubclass(k, BaseException) for k in each):
        message = "catching classes that do not inherit from BaseException is not allowed"
        raise ProgramRaised(TypeError(message))
    return each


@opcode("RERAISE")
def reraise(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    raise ProgramRaised(frame.stack.pop(), again=True)


@opcode("RAISE_VARARGS")
def raise_varargs(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    cause = frame.stack.pop() if instruction.arg == 2 else ABSENT
    if instruction.arg == 0:
        handled = interpreter.handled()
        if handled is None:
            raise ProgramRaised(RuntimeError("No active exception to reraise"))
        raise ProgramRaised(handled, again=True)
    exception = _instantiate(interpreter, frame.stack.pop())
    if isinstance(exception, (DataDependent, Untraceable)):  # of a fake tensor's own method
        raise exception
    handled = interpreter.handled()
    chained = handled is not None and handled is not exception
    changed = chained or cause is not ABSENT
    if changed and interpreter.guard_context.source_of(exception) is not None:
        raise BreakRequested("unsupported-attribute", "the context of an exception from outside")
    if cause is not ABSENT:
        exception.__cause__ = None if cause is None else _cause(interpreter, cause)
    if chained:
        exception.__context__ = None
        chain(exception, handled)
    raise ProgramRaised(exception)


def _cause(interpreter: Interpreter, value: Any) -> BaseException:
    """What stands behind `from`."""
    if issubclass(type(value), type) and issubclass(value, BaseException):
        value = interpreter.call(value)
    if not issubclass(type(value), BaseException):
        raise ProgramRaised(TypeError("exception causes must derive from BaseException"))
    return value


def _instantiate(interpreter: Interpreter, value: Any) -> BaseException:
    if issubclass(type(value), type) and issubclass(value, BaseException):
        cls, value = value, interpreter.call(value)
        if not issubclass(type(value), BaseException):
            message = (
                f"calling {cls!r} should have returned an instance of BaseException, "
                f"not {type(value)!r}"
            )
            raise ProgramRaised(TypeError(message))
    if not issubclass(type(value), BaseException):
        raise ProgramRaised(TypeError("exceptions must derive from BaseException"))
    return value


@opcode("CLEANUP_THROW")
def cleanup_throw(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    exception = frame.stack[-1]
    if not issubclass(type(exception), StopIteration):
        raise ProgramRaised(exception, again=True)
    del frame.stack[-2 - BYTECODE.iterator_slots :]
    frame.stack.extend((None,) * BYTECODE.iterator_slots + (exception.value,))


# --- with ----------------------------------------------------------------------------------------


@opcode("BEFORE_WITH")
def before_with(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    manager = frame.stack.pop()
    enter = _of_manager(interpreter, manager, "__enter__", "")
    leave = _of_manager(interpreter, manager, "__exit__", " (missed __exit__ method)")
    frame.stack.extend((leave, interpreter.call(enter)))


# The names of LOAD_SPECIAL's methods, and what an error adds where one is missing.
_SPECIAL = {
    "__enter__": " (missed __enter__ method)",
    "__exit__": " (missed __exit__ method)",
}


def special_method(interpreter: Interpreter, owner: object, name: str) -> object:
    """A method of LOAD_SPECIAL's, bound to its owner."""
    if name not in _SPECIAL:
        raise BreakRequested("unsupported-function", "a coroutine")
    return _of_manager(interpreter, owner, name, _SPECIAL[name])


def _of_manager(interpreter: Interpreter, manager: object, name: str, missed: str) -> object:
    """A special method, which only the class is asked for."""
    cls = interpreter.guard_context.type_of(manager)
    method = interpreter.guard_context.lookup(cls, name)
    if method is ABSENT:
        kind = name_of_manager(manager, cls)
        message = f"{kind!r} object does not support the context manager protocol{missed}"
        raise ProgramRaised(TypeError(message))
    return bind_attribute(interpreter, method, manager, cls, name)


@opcode("WITH_EXCEPT_START")
def with_except_start(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    exception = frame.stack[-1]
    leave, *owner = frame.stack[-3 - BYTECODE.exit_slots : -3]
    arguments = [value for value in owner if value is not NULL]
    arguments += (type(exception), exception, exception.__traceback__)
    frame.stack.append(interpreter.call(leave, *arguments))


# --- except* -------------------------------------------------------------------------------------


@opcode("CHECK_EG_MATCH")
def check_group_match(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    kinds = interpreter.side_effects.native(frame.stack.pop())
    if any(issubclass(kind, BaseExceptionGroup) for kind in _caught_classes(kinds)):
        message = "catching ExceptionGroup with except* is not allowed. Use except instead."
        raise ProgramRaised(TypeError(message))
    exception = frame.stack[-1]
    match, rest = None, exception
    if issubclass(type(exception), BaseExceptionGroup):
        match, rest = interpreter.native(exception.split, kinds)
    elif exception is not None and interpreter.native(isinstance, exception, kinds):
        kind = ExceptionGroup if issubclass(type(exception), Exception) else BaseExceptionGroup
        match, rest = kind("", [exception]), None
    frame.stack[-1] = rest
    frame.stack.append(match)
    if match is not None and frame.handled:
        frame.handled[-1] = match


@opcode("PREP_RERAISE_STAR")
def prepare_reraise(interpreter: Interpreter, frame: Frame, instruction: Instruction) -> None:
    raised = frame.stack.pop()
    frame.stack[-1] = _to_reraise(frame.stack[-1], raised)


def _to_reraise(original: BaseException, results: list[Any]) -> BaseException | None:
    """What leaves an `except*` statement: what its handlers raised, and what none of them took."""
    left = [exception for exception in results if exception is not None]
    if not isinstance(original, BaseExceptionGroup):
        return left[0] if left else None
    raised = [exception for exception in left if not _is_part_of(exception, original)]
    untaken = {leaf for e in left if _is_part_of(e, original) for leaf in _leaves(e)}
    rest = original.split(lambda e: id(e) in untaken)[0] if untaken else None
    if rest is not None:
        raised.append(rest)
    if len(raised) > 1:
        return BaseExceptionGroup("", raised)
    return raised[0] if raised else None


def _is_part_of(exception: BaseException, original: BaseException) -> bool:
    names = ("__notes__", "__traceback__", "__cause__", "__context__")
    return all(getattr(exception, n, None) is getattr(original, n, None) for n in names)


def _leaves(exception: Any) -> list[int]:
    if issubclass(type(exception), BaseExceptionGroup):
        return [leaf for part in exception.exceptions for leaf in _leaves(part)]
    return [id(exception)]
