"""Methods of texts: joining, and those of texts that show sizes."""

from __future__ import annotations

import itertools
import operator
from typing import TYPE_CHECKING

from braze.capture.calls.c_functions import (
    call_builtin,
    call_natively,
    call_seen,
    iterable_argument,
)
from braze.capture.calls.handler_registry import answers
from braze.capture.objects.formatting import text_of
from braze.capture.state.lazy_strings import SETTLING, ShownText, joined

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


@answers(str.join)
def join(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """`separator.join(parts)`: with sizes in a part, a text that shows them."""
    separator, parts = args
    parts = iterable_argument(interpreter, parts)
    if hasattr(type(parts), "__next__"):
        parts = interpreter.native(list, parts)
    if type(parts) in (list, tuple):
        shows = ShownText in map(type, parts)
        if shows and all(issubclass(type(part), str) for part in parts):
            between = itertools.chain.from_iterable([(separator, part) for part in parts])
            return joined(list(between)[1:])
    return call_seen(interpreter, str.join, (separator, parts), kwargs)


@answers(object.__str__)
def text_of_object(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`object.__str__` calls the `__repr__` of the class, which may be the program's."""
    if len(args) == 1 and not kwargs:
        return text_of(interpreter, args[0], repr)
    return call_natively(interpreter, object.__str__, args, kwargs)


@answers(itertools.accumulate)
def accumulate(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """By itself it adds in C what an iterator gives later."""
    if len(args) < 2 and kwargs.get("func") is None:
        kwargs = {**kwargs, "func": operator.add}
    return call_natively(interpreter, itertools.accumulate, args, kwargs)


def _answer_method(name: str, of_shown: object) -> None:
    """A method of a text that shows sizes: what `str` does with the plain text."""
    method = getattr(str, name)

    @answers(of_shown)
    def call(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        text, *others = args
        plain = interpreter.native(ShownText.settle, text)
        return call_builtin(interpreter, method, (plain, *others), kwargs)


for _name, _method in SETTLING.items():
    _answer_method(_name, _method)
