"""Labels of a program on stretches of a profile, `with record_function("name"):`, in compiled code.

What a graph holds of a block is shown by the graph's own profile. A block that a graph break cuts
is open for real behind the graph, until the graph has run in which its end is met.

The capture interprets this file as it does the program's: what a label does while a frame is
captured is in `braze.capture.handlers.torch_state`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar, final

from torch.autograd.profiler import record_function

from braze.compat.torch.profiler import PROFILER

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


@final
class OpenLabels:
    """The labels that a thread, or a task of an event loop, has open behind graph breaks, innermost
    last; None for those that were met while no profiler was at work."""

    def __init__(self) -> None:
        self._open: ContextVar[tuple[Any, ...]] = ContextVar("braze.labels", default=())

    def enter(self, name: str) -> None:
        """Open a label."""
        opened = None
        if PROFILER._is_profiler_enabled:
            opened = record_function(name)
            opened.__enter__()
        self._open.set((*self._open.get(), opened))

    def leave(self) -> None:
        """Close the innermost one."""
        *rest, opened = self._open.get()
        self._open.set(tuple(rest))
        if opened is not None:
            opened.__exit__(None, None, None)


OPEN_LABELS = OpenLabels()


@final
class Label:
    """What `record_function(name, args)` is in compiled code: a context manager, or a decorator."""

    def __init__(self, name: str, args: str | None = None) -> None:
        self.name = name
        self.args = args

    def __enter__(self) -> Label:
        OPEN_LABELS.enter(self.name)
        return self

    def __exit__(self, *exception: object) -> None:
        OPEN_LABELS.leave()

    def __call__(self, function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        """A function whose calls are in the block."""

        @functools.wraps(function)
        def labelled(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            with self:
                return function(*args, **kwargs)

        return labelled
