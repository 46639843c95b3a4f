"""Regions in which a graph break is an error, while a frame is captured.

A region that ends in the frame leaves nothing behind. One that a break cuts is entered behind the
graph, so that what is captured next begins in it.
"""

from __future__ import annotations

import types
from typing import Any

from braze.capture.attributes import load_attribute
from braze.capture.handler_table import answers
from braze.compat.compiler_questions import region_of_compiler
from braze.regions import REGIONS, error_on_graph_break


@answers(vars(error_on_graph_break)["__enter__"])
def enter(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Behind the graph, too, until the region's end is met."""
    flag = bool(load_attribute(interpreter, args[0], "error_on_graph_break"))
    interpreter.break_regions.append(flag)
    interpreter.late_calls.append((REGIONS.enter, (flag,)))


@answers(vars(error_on_graph_break)["__exit__"])
def leave(interpreter: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Nothing is left of one that was entered here, where nothing else was put off since."""
    flag = interpreter.break_regions.pop()
    late = interpreter.late_calls
    if late and late[-1] == (REGIONS.enter, (flag,)):
        late.pop()
    else:
        late.append((REGIONS.leave, ()))


def call_in_region(
    interpreter: Any, function: types.FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A call of what PyTorch's manager of this name, as a decorator, made of a function."""
    found = region_of_compiler(function)
    assert found is not None
    flag, original = found
    manager = interpreter.call(error_on_graph_break, flag)
    interpreter.world.source_of_function(original)
    return interpreter.call(interpreter.call(manager, original), *args, **kwargs)
