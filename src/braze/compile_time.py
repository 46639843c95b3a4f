"""`braze.comptime`: what a program does while it is compiled, and not when it runs.

    comptime.print(x)              a tensor's dtype, sizes, strides, device; another value
    comptime.print_graph()         the graph so far
    comptime(lambda ctx: ...)      any function, which is given the same as methods of `ctx`

These functions are what eager calls. What they do in a capture is in
`braze.capture.calls.compile_time_calls`. No call breaks the graph, and nothing is left of it there.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any, final

# Functions of `comptime`, by name, which have a method of the same name on the context.
CONTEXT_CALLS = (
    "breakpoint",
    "disas",
    "graph_break",
    "print",
    "print_bt",
    "print_disas",
    "print_graph",
    "print_guards",
    "print_locals",
    "print_value_stack",
    "print_value_stack_and_return",
    "sleep",
)


def _nothing() -> None:
    return None


@final
class Comptime:
    """What `braze.comptime` is."""

    @staticmethod
    def __call__(
        function: Callable[[object], object], fallback_fn: Callable[[], object] = _nothing
    ) -> None:
        """Call `function(ctx)` when this line is compiled; where nothing is compiled,
        `fallback_fn()`. Also a decorator."""
        fallback_fn()

    @staticmethod
    def print(value: object) -> None:
        """Print a value when this line is compiled; where nothing is compiled, when it runs."""
        builtins.print(value)

    @staticmethod
    def print_bt(*, stacklevel: int = 0) -> None:
        """Print the stack of functions that are captured."""

    @staticmethod
    def print_locals(*, stacklevel: int = 0) -> None:
        """Print the local variables."""

    @staticmethod
    def print_graph() -> None:
        """Print the graph so far."""

    @staticmethod
    def print_guards() -> None:
        """Print the guards so far."""

    @staticmethod
    def print_disas(*, stacklevel: int = 0) -> None:
        """Print the function's instructions, with an arrow at this one."""

    @staticmethod
    def disas(*, stacklevel: int = 0) -> None:
        """The same."""

    @staticmethod
    def print_value_stack(*, stacklevel: int = 0) -> None:
        """Print what is on the interpreter's stack."""

    @staticmethod
    def print_value_stack_and_return(value: object, *, stacklevel: int = 0) -> Any:
        """The same inside of an expression: `x + print_value_stack_and_return(y)`."""
        return value

    @staticmethod
    def breakpoint() -> None:
        """Open the debugger when this line is compiled, with `ctx` at hand."""

    @staticmethod
    def graph_break() -> None:
        """End the graph here."""

    @staticmethod
    def sleep(seconds: float) -> None:
        """Wait when this line is compiled."""


comptime = Comptime()
