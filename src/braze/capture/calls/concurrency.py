"""Calls of what runs beside the program, or waits for it, break the graph: threads, queues, locks,
executors, event loops, processes, signals, sockets.

What such a call writes is seen by others at once, and what it waits for may depend on what the
program wrote before: neither is so while a frame is captured, where writes are put off. The table
names modules, so what they get next is in it.
"""

from __future__ import annotations

import _thread
from typing import TYPE_CHECKING

from braze.capture.calls.handler_registry import answers
from braze.compat.python.stdlib import SameThread
from braze.ir.captured.guard import GuardKind

if TYPE_CHECKING:
    from braze.capture.interpreter import Interpreter

# What the standard library builds of them is among them: each hands out or awaits such objects.
_MODULES = frozenset(
    {
        "_asyncio",
        "_contextvars",
        "_multiprocessing",
        "_posixsubprocess",
        "_queue",
        "_signal",
        "_socket",
        "_ssl",
        "_thread",
        "_threading_local",
        "asyncio",
        "concurrent",
        "contextvars",
        "multiprocessing",
        "queue",
        "sched",
        "select",
        "selectors",
        "signal",
        "socket",
        "socketserver",
        "ssl",
        "subprocess",
        "threading",
    }
)
# Where the number of the thread only tells a call that calls itself from another thread's.
_TELLS_RECURSION = frozenset({"reprlib", "dataclasses"})


def is_concurrent(module: object) -> bool:
    """Whether a callable of this module runs beside the program, or waits."""
    return isinstance(module, str) and module.partition(".")[0] in _MODULES


@answers(_thread.get_ident)
def get_ident(
    interpreter: Interpreter, args: tuple[object, ...], kwargs: dict[str, object]
) -> object:
    """The number of the thread, which is another one where another thread calls."""
    if interpreter.frames[-1].globals.get("__name__") not in _TELLS_RECURSION:
        interpreter.guard_context.guard(None, GuardKind.HOLDS, SameThread())
    return interpreter.native(_thread.get_ident, *args, **kwargs)
