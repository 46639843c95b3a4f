"""Special methods of the program that C code calls: the call is interpreted all the same.

A dict asks its keys for `__hash__` and `__eq__`, `sorted` for `__lt__`, `zip` for `__next__`. While
a frame is captured such a method's function has redirected code, which comes back to the
interpreter: those of classes made in the frame for as long as it is captured, those of other
classes while C code runs on their instances.
"""

from __future__ import annotations

import os
import threading
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, final

from braze.capture.frames.control_signals import ProgramRaised
from braze.capture.state.string_escape import handed_over
from braze.compat.python.code_patching import redirected_code, set_code, target_of
from braze.compat.python.packages import is_of_package
from braze.shapes.symbolic import ProgramInt

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_OWN = ("braze", "torch")
_GIVE_INTEGERS = frozenset({"__hash__", "__index__", "__len__"})
_ASKED_OF_KEYS = frozenset({"__hash__", "__eq__"})


@final
class ReentrantCall:
    """The redirected calls of one function. In another thread, and when the capture is over, the
    function does what it always did."""

    def __init__(self, interpreter: Interpreter, function: types.FunctionType) -> None:
        self._interpreter = interpreter
        self._function = function
        self._thread, self._process = threading.get_ident(), os.getpid()
        self.code = function.__code__

    def __call__(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        interpreter = self._interpreter
        if (
            interpreter.over
            or threading.get_ident() != self._thread
            or (
                os.getpid() != self._process  # a child may give a new thread the same number
            )
        ):
            return self._as_always()(*args, **kwargs)
        try:
            result = self._call(args, kwargs)
            if type(result) is ProgramInt and self.code.co_name in _GIVE_INTEGERS:
                return int(result)  # C code takes nothing else
            return handed_over(interpreter.reader, result)
        except ProgramRaised as raised:
            problem = raised.exception
        except BaseException as passing:
            if self.code.co_name != "__del__":
                raise
            interpreter.missed = passing  # Python would print it and go on
            return None
        raise problem

    def _call(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        interpreter = self._interpreter
        if self.code.co_name not in _ASKED_OF_KEYS or interpreter.keys_changed_at is not None:
            return interpreter.call(self._function, *args, **kwargs)
        before = interpreter.marks(), len(interpreter.draws)
        result = interpreter.call(self._function, *args, **kwargs)
        if (interpreter.marks(), len(interpreter.draws)) != before:
            interpreter.keys_changed_at = interpreter.outer_step
        return result

    def restore(self) -> None:
        """Give the function its own code again."""
        set_code(self._function, self.code)

    def _as_always(self) -> types.FunctionType:
        function = self._function
        copy = types.FunctionType(
            self.code,
            function.__globals__,
            function.__name__,
            function.__defaults__,
            function.__closure__,
        )
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy


def code_of(function: types.FunctionType) -> types.CodeType:
    """The program's own code of a function."""
    code = function.__code__
    target = target_of(code)
    return target.code if isinstance(target, ReentrantCall) else code


def redirect(
    interpreter: Interpreter, functions: Iterable[types.FunctionType], made: list[ReentrantCall]
) -> None:
    """Give functions redirected code, unless they have it; the new trampolines are added to
    `made`, each before it serves, so that an interrupt leaves none behind."""
    for function in functions:
        if target_of(function.__code__) is None:
            reentrant_call = ReentrantCall(interpreter, function)
            made.append(reentrant_call)
            set_code(function, redirected_code(reentrant_call.code, reentrant_call))


def restore(reentrant_calls: Iterable[ReentrantCall]) -> None:
    """Give functions their own code again."""
    for reentrant_call in reentrant_calls:
        reentrant_call.restore()


def special_method_raising(error: BaseException) -> str | None:
    """The name of the program's `__eq__` or `__hash__` that an exception was raised in; None where
    it was raised elsewhere."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_name not in ("__eq__", "__hash__"):
        return None
    module = trace.tb_frame.f_globals.get("__name__", "")
    return None if is_of_package(module, *_OWN) else trace.tb_frame.f_code.co_qualname
