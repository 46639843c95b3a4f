"""Callables of the program as C code gets them: calls, and the truth of results, are interpreted.

filter(None, items)    ->    filter(Callback(bool), items)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from braze.capture.state.guard_context import CONSTANTS
from braze.capture.state.string_escape import handed_over
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@final
class Callback:
    """A callable of the program that native code may call: the call is interpreted.

    is_tested: native code asks for the truth of what it gives, which is interpreted, too.
    """

    def __init__(self, interpreter: Interpreter, function: object, is_tested: bool = False) -> None:
        self._interpreter = interpreter
        self._is_tested = is_tested
        self.function = function

    def __call__(self, *args: object, **kwargs: object) -> object:
        if self._interpreter.over:  # of a weak reference to what only the capture made
            return None
        result = self._interpreter.call_raising(self.function, *args, **kwargs)
        if self._is_tested and type(result) not in CONSTANTS:
            return self._interpreter.call_raising(bool, result)
        return handed_over(self._interpreter.reader, result)


# What asks the results of its first argument, or the items of its second, for their truth.
_FILTERS = frozenset({filter, itertools.filterfalse})
TESTING = _FILTERS | {itertools.takewhile, itertools.dropwhile, itertools.compress}


def with_truths_asked(
    interpreter: Interpreter,
    called: object,
    args: tuple[object, ...],
    fit: Callable[[Any, Any], Any],
) -> tuple[object, ...]:
    """Arguments of which C code gets truths, where it would ask objects of the program's.
    fit: makes an iterable of the program's one for C code."""
    if len(args) != 2:
        return args
    first, items = args
    if called is itertools.compress:
        ask = Callback(interpreter, bool, is_tested=True)
        return first, map(ask, fit(interpreter, items))
    if first is None and called in _FILTERS:
        first = bool
    if type(first) is Callback:
        return args  # of a copy of such an iterator
    if interpreter.guard_context.lookup(type(first), "__call__") is ABSENT:
        return args
    return Callback(interpreter, first, is_tested=True), items
