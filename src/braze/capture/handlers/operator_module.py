"""The functions of `operator`, and sorting: what they do to objects is the objects' own code."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import ProgramRaised
from braze.capture.objects.items import delete_item, get_item, store_item
from braze.capture.objects.iteration import counted_iterable, is_uniterable, native_iterable
from braze.capture.objects.operators import (
    COMPARISONS,
    OPERATORS,
    UNARY,
    Operator,
    binary,
    contains,
    is_same,
    unary,
)
from braze.capture.objects.truth import truth
from braze.capture.state.guard_context import is_constant
from braze.ir.captured.guard import ABSENT

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter


def _two(op: Operator) -> Callable[..., object]:
    def apply(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if len(args) != 2 or kwargs:
            return interpreter.native(op.function, *args, **kwargs)
        return binary(interpreter, op, *args)

    return apply


def _one(op: Operator) -> Callable[..., object]:
    def apply(
        interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> object:
        if len(args) != 1 or kwargs:
            return interpreter.native(op.function, *args, **kwargs)
        return unary(interpreter, op, *args)

    return apply


for _op in (*OPERATORS.values(), *COMPARISONS.values()):
    answers(_op.function)(_two(_op))
for _name in ("__neg__", "__pos__", "__invert__"):
    answers(UNARY[_name].function)(_one(UNARY[_name]))


@answers(operator.iconcat)
def concatenate(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """`a += b` of what can be indexed."""
    is_sequence = len(args) == 2 and not issubclass(type(args[0]), dict)
    if not is_sequence or interpreter.guard_context.lookup(type(args[0]), "__getitem__") is ABSENT:
        return interpreter.native(operator.iconcat, *args, **kwargs)
    return binary(interpreter, OPERATORS["+="], *args)


@answers(operator.contains)
def contains_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    return contains(interpreter, *args)


@answers(operator.getitem)
def getitem_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    return get_item(interpreter, *args)


@answers(operator.setitem)
def setitem_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    store_item(interpreter, *args)


@answers(operator.delitem)
def delitem_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    delete_item(interpreter, *args)


@answers(operator.truth)
def truth_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    return truth(interpreter, *args)


@answers(operator.not_)
def not_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    return not truth(interpreter, *args)


@answers(operator.is_)
def is_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    return is_same(interpreter, *args)


@answers(operator.is_not)
def is_not_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> bool:
    return not is_same(interpreter, *args)


# --- sorting -------------------------------------------------------------------------------------


@final
class _Ordered:
    """A sort key that compares as the program says."""

    __slots__ = ("_interpreter", "key")

    def __init__(self, interpreter: Interpreter, key: object) -> None:
        self._interpreter = interpreter
        self.key = key

    def __lt__(self, other: _Ordered) -> bool:
        interpreter = self._interpreter
        try:
            return truth(interpreter, binary(interpreter, COMPARISONS["<"], self.key, other.key))
        except ProgramRaised as raised:
            problem = raised.exception
        raise problem


def sorted_items(
    interpreter: Interpreter, items: list[Any], key: Any, reverse: object
) -> list[Any]:
    """The items in order, as a new list."""
    keys = items if key is None else [interpreter.call(key, item) for item in items]
    if not all(map(is_constant, keys)):
        keys = [_Ordered(interpreter, one) for one in keys]
    backwards = truth(interpreter, reverse)
    order = interpreter.native(sorted, range(len(items)), key=keys.__getitem__, reverse=backwards)
    return [items[index] for index in order]


@answers(sorted)
def sorted_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    if len(args) != 1 or kwargs.keys() - {"key", "reverse"}:
        return interpreter.native(sorted, *args, **kwargs)
    items = interpreter.native(list, counted_iterable(interpreter, args[0]))
    return sorted_items(interpreter, items, kwargs.get("key"), kwargs.get("reverse", False))


@answers(list.sort)
def sort_method(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    if len(args) != 1 or kwargs.keys() - {"key", "reverse"}:
        return interpreter.native(list.sort, *args, **kwargs)
    target = interpreter.side_effects.changed(args[0])
    items = found = list.__getitem__(target, slice(None))
    list.clear(target)  # the program may look at it meanwhile
    try:
        found = sorted_items(interpreter, items, kwargs.get("key"), kwargs.get("reverse", False))
        if list.__len__(target):
            raise ProgramRaised(ValueError("list modified during sort"))
    finally:
        list.__setitem__(target, slice(None), found)


@answers(functools.reduce)
def reduce_function(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    if not 2 <= len(args) <= 3 or kwargs:
        return interpreter.native(functools.reduce, *args, **kwargs)  # raises
    function, iterable, *initial = args
    if is_uniterable(interpreter, iterable):
        raise ProgramRaised(TypeError("reduce() arg 2 must support iteration"))
    items = interpreter.native(iter, native_iterable(interpreter, iterable))
    total = initial[0] if initial else interpreter.native(next, items, ABSENT)
    if total is ABSENT:
        raise ProgramRaised(TypeError("reduce() of empty iterable with no initial value"))
    while (item := interpreter.native(next, items, ABSENT)) is not ABSENT:
        total = interpreter.call(function, total, item)
    return total
