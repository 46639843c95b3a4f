"""What is remembered of callables that a capture has called: a later call asks no questions that
the first one answered."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, TypeAlias, final

from braze.capture.frames.dispatch_table import Step
from braze.marks import MARKS

# route(interpreter, function, args, kwargs) -> (a frame to run, None) or (None, the result)
Route: TypeAlias = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]


@final
class KnownFunction:
    """A Python function from outside that is interpreted, its defaults read and guarded.

    count: how many positional arguments make a call that leaves nothing to bind; -1: none does.
    """

    __slots__ = ("code", "count", "defaults", "keyword_defaults", "runs_eagerly", "steps")

    def __init__(
        self,
        code: types.CodeType,
        steps: tuple[Step, ...],
        defaults: tuple[object, ...],
        keyword_defaults: dict[str, object],
        runs_eagerly: bool,
    ) -> None:
        self.code = code
        self.steps = steps
        self.defaults = defaults
        self.keyword_defaults = keyword_defaults
        self.runs_eagerly = runs_eagerly
        simple = not code.co_kwonlyargcount and not code.co_flags & _REST
        self.count = code.co_argcount if simple else -1


_REST = 0x04 | 0x08  # *args, **kwargs


# way(interpreter, function, args, kwargs) -> the result
Way: TypeAlias = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


@final
class KnownCalls:
    """routes: of Python functions. ways: of C functions and methods that are bound to no value.
    functions: those that are interpreted. instances: by class, the function that a call of an
    instance calls. marks: how many the user had put when this was so.
    """

    __slots__ = ("functions", "instances", "marks", "routes", "ways")

    def __init__(self) -> None:
        self.routes: dict[types.FunctionType, Route] = {}
        self.ways: dict[Any, Way] = {}
        self.functions: dict[types.FunctionType, KnownFunction] = {}
        self.instances: dict[type, types.FunctionType] = {}
        self.marks = MARKS.changes

    def forget(self) -> None:
        """The user put a mark: ask again."""
        self.release()
        self.marks = MARKS.changes

    def release(self) -> None:
        """Empty the tables."""
        for table in (self.routes, self.ways, self.functions, self.instances):
            table.clear()
