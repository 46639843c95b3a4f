"""Regions in which a graph break is an error, while a frame is captured.

A region that ends in the frame leaves nothing behind. One that a break cuts is entered behind the
graph, so that what is captured next begins in it.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from braze.capture.calls.deferred_contexts import enter_late, leave_late
from braze.capture.calls.handler_registry import answers
from braze.capture.frames.control_signals import BreakRequested
from braze.capture.objects.attribute_load import load_attribute
from braze.compat.torch.dynamo_interop import is_region, region_of_compiler
from braze.regions import REGIONS, error_on_graph_break

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

_FLAG, _BEFORE = "error_on_graph_break", "prev_error_on_graph_break"


@answers(vars(error_on_graph_break)["__enter__"])
def enter(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Behind the graph, too, until the region's end is met."""
    flag = bool(load_attribute(interpreter, args[0], _FLAG))
    interpreter.break_regions.append(flag)
    interpreter.deferred_calls.append((REGIONS.enter, (flag,)))


@answers(vars(error_on_graph_break)["__exit__"])
def leave(interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    """Nothing is left of one that was entered here, where nothing else was put off since."""
    flag = interpreter.break_regions.pop()
    late = interpreter.deferred_calls
    if late and late[-1] == (REGIONS.enter, (flag,)):
        late.pop()
    else:
        late.append((REGIONS.leave, ()))


def enter_or_leave(
    interpreter: Interpreter, function: types.FunctionType, args: tuple[Any, ...]
) -> None:
    """`__enter__` or `__exit__` of a manager of PyTorch's compiler that the program made outside of
    the frame, in a `with` statement or in the function that it made as a decorator. It says whether
    breaks are errors, or sets what means nothing here."""
    manager, regions = args[0], interpreter.break_regions
    enter, leave = type(manager).__enter__, type(manager).__exit__
    says = is_region(manager)
    if function is enter:
        if says:
            regions.append(bool(load_attribute(interpreter, manager, _FLAG)))
        enter_late(interpreter, enter, manager)
    elif leave_late(interpreter, enter, leave, manager):
        if says:
            regions.pop()
    elif says:
        before = load_attribute(interpreter, manager, _BEFORE)
        # PyTorch up to 2.12 keeps one value, not one for each time that the region is entered.
        one = isinstance(before, bool)
        flags = [before] if one else interpreter.side_effects.contents(before)
        if len(regions) > 1 or not flags:
            raise BreakRequested("explicit", "the end of a region that was entered elsewhere")
        if flags[-1] is not None:
            regions[0] = flags[-1]


def call_in_region(
    interpreter: Interpreter,
    function: types.FunctionType,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> object:
    """A call of what PyTorch's manager of this name, as a decorator, made of a function."""
    found = region_of_compiler(function)
    assert found is not None
    flag, original = found
    manager = interpreter.call(error_on_graph_break, flag)
    interpreter.guard_context.source_of_function(original)
    return interpreter.call(interpreter.call(manager, original), *args, **kwargs)
