"""Regions of a program in which a graph break is an error, or is none.

The capture interprets this file as it does the program's: what a region's manager does while a
frame is captured is in `braze.capture.handlers.break_regions`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import ParamSpec, TypeVar, final

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@final
class Regions:
    """The regions that a thread, or a task of an event loop, is in: whether graph breaks are errors
    in each, innermost last."""

    def __init__(self) -> None:
        self._entered: ContextVar[tuple[bool, ...]] = ContextVar("braze.regions", default=())

    def __iter__(self) -> Iterator[bool]:
        return iter(self._entered.get())

    def enter(self, breaks_are_errors: bool) -> None:
        """Enter a region."""
        self._entered.set((*self._entered.get(), breaks_are_errors))

    def leave(self) -> None:
        """Leave the innermost region."""
        self._entered.set(self._entered.get()[:-1])


REGIONS = Regions()


@final
class error_on_graph_break:
    """Make graph breaks errors, or allow them, in a part of a compiled program.

        with braze.error_on_graph_break(True): ...      in the block
        @braze.error_on_graph_break(False)              in the function, and in what it calls

    Around the call of a compiled function it is said of what is compiled there. With
    `fullgraph=True` each break is an error, whatever a region says. Nothing is said of the number
    of graphs: what breaks outside of the region still does.
    """

    def __init__(self, error_on_graph_break: bool) -> None:
        self.error_on_graph_break = error_on_graph_break

    def __enter__(self) -> None:
        REGIONS.enter(self.error_on_graph_break)

    def __exit__(self, *exception: object) -> None:
        REGIONS.leave()

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """A function whose calls are in the region."""

        @functools.wraps(function)
        def in_region(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with self:
                return function(*args, **kwargs)

        return in_region
