"""`contextvars.ContextVar`: what is set outside of the frame is guarded, what the frame sets is set
behind the graph; a variable that the frame sets and resets is left alone.

Values are numbers, texts and the like. A token that outlives the piece that is captured cannot be
made again: the frame breaks before it is made.
"""

from __future__ import annotations

import contextvars
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any, final

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested, ProgramRaised
from braze.capture.state.guard_context import is_constant
from braze.ir.captured.guard import GuardKind

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@final
class NotSet:
    """The answer where a variable has no value in the context, and no default."""


@final
class SetVariable:
    """A call that is made behind the graph. token: what the program got, which says what was
    before."""

    def __init__(self, variable: ContextVar[object], token: Token[object]) -> None:
        self.variable, self.token = variable, token

    def __call__(self, value: object) -> None:
        self.variable.set(value)


def value_in_context(variable: ContextVar[object]) -> object:
    """The value of a variable in this thread's context; NotSet where there is none."""
    try:
        return variable.get()
    except LookupError:
        return NotSet


@answers(ContextVar.get)
def get(interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
    """The value that the frame set, or that is found at each call."""
    variable, *default = args
    _check_known(interpreter, variable)
    for call, values in reversed(interpreter.deferred_calls):
        if type(call) is SetVariable and call.variable is variable:
            return values[0]
    # A default that is given goes before the variable's own, which only C code can tell apart.
    found = variable.get(NotSet) if default else value_in_context(variable)
    if found is not NotSet and not is_constant(found):
        raise BreakRequested("unseen-callable", "ContextVar.get, of other than numbers and text")
    asked = (ContextVar.get, (variable, NotSet)) if default else (value_in_context, (variable,))
    interpreter.guard_context.guard(None, GuardKind.ANSWER, (*asked, found))
    if found is not NotSet:
        return found
    if default:
        return default[0]
    raise ProgramRaised(LookupError(variable))


@answers(ContextVar.set)
def set_variable(
    interpreter: Interpreter, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    """The token is a real one, of a context of its own."""
    variable, value = args
    _check_known(interpreter, variable)
    if not is_constant(value):
        raise BreakRequested("unseen-callable", "ContextVar.set, of other than numbers and text")
    token = contextvars.copy_context().run(variable.set, value)
    interpreter.deferred_calls.append((SetVariable(variable, token), (value,)))
    return token


@answers(ContextVar.reset)
def reset(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Nothing is left of what was set last; other tokens are for the program's own call."""
    variable, token = args
    last, _ = interpreter.deferred_calls[-1] if interpreter.deferred_calls else (None, ())
    if type(last) is not SetVariable or last.variable is not variable or last.token is not token:
        raise BreakRequested("unseen-callable", "ContextVar.reset, of what was not set last")
    interpreter.deferred_calls.pop()


# --- private ---------------------------------------------------------------------------------


def _check_known(interpreter: Interpreter, variable: ContextVar[object]) -> None:
    if id(variable) not in interpreter.guard_context.known:
        raise BreakRequested("unseen-callable", "a method of a new ContextVar")
