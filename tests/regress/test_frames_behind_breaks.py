"""What looks at the frames of its callers, behind a graph break, sees those of the program."""

from __future__ import annotations

import collections
import dataclasses
import enum
import inspect
import io
import logging
import sys
import traceback
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def stack() -> Any:
    return [(frame.filename, frame.lineno, frame.name) for frame in traceback.extract_stack()]


def printed() -> Any:
    text = io.StringIO()
    traceback.print_stack(file=text)
    return text.getvalue()


def warned() -> Any:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        for level in (1, 2, 3, 4):
            warnings.warn("here", stacklevel=level)
    return [(one.filename, one.lineno) for one in given]


def modules() -> Any:
    made: list[Any] = [
        typing.TypeVar("T"),
        typing.ParamSpec("P"),
        typing.NewType("N", int),
        typing.NamedTuple("Row", [("a", int)]),
        dataclasses.make_dataclass("Made", ["a"]),
        collections.namedtuple("Pair", "a b"),
        enum.Enum("Kind", "A B"),
    ]
    return [one.__module__ for one in made]


def inspected() -> Any:
    return [(one.function, one.lineno) for one in inspect.stack(0)]


def caller() -> Any:
    frame = sys._getframe(1)
    return frame.f_code.co_name, frame.f_lineno, frame.f_globals["__name__"]


def callers() -> Any:
    frame: Any = sys._getframe()
    found = []
    while frame is not None:
        found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


def logged() -> Any:
    return logging.Logger("any").findCaller(False, 1)


class Watched:
    """Methods that the interpreter calls for instructions."""

    found: list[Any]

    def _look(self) -> list[Any]:
        return [(one.name, one.lineno) for one in traceback.extract_stack()[:-1]]

    def __enter__(self) -> Watched:
        self.found = [self._look()]
        return self

    def __exit__(self, *exception: object) -> None:
        self.found.append(self._look())

    def __add__(self, other: int) -> Any:
        return self._look()

    def __getitem__(self, key: int) -> Any:
        return self._look()

    @property
    def value(self) -> Any:
        return self._look()


def methods() -> Any:
    watched = Watched()
    with watched:
        print(end="")
    return watched.found, watched + 1, watched[0], watched.value


LOOKS = [
    stack, printed, warned, modules, inspected, caller, callers, logged, methods,
]  # fmt: skip


def breaks_before(look: Callable[[], Any], x: torch.Tensor) -> Any:
    x = x + 1
    print(end="")
    found = look()
    return found, x * 2


def breaks_below(look: Callable[[], Any], x: torch.Tensor) -> Any:
    return between(look, x + 1)


def between(look: Callable[[], Any], x: torch.Tensor) -> Any:
    print(end="")
    y = x * 3
    found = look()
    return found, y + 1


def breaks_in_a_block(look: Callable[[], Any], x: torch.Tensor) -> Any:
    with torch.no_grad():
        try:
            found, y = between(look, x)
        finally:
            print(end="")
    return found, y * 2


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.__name__)
@pytest.mark.parametrize(
    "program", [breaks_before, breaks_below, breaks_in_a_block], ids=lambda one: one.__name__
)
@pytest.mark.filterwarnings("ignore::braze.errors.BrazeWarning")
def test_frames_are_the_programs(program: Any, look: Callable[[], Any]) -> None:
    compiled = braze.compile(program)
    found = [step(look, torch.ones(3)) for step in (program, compiled, compiled)]
    assert found[1][0] == found[0][0]
    assert found[2][0] == found[0][0]
    assert torch.equal(found[2][1], found[0][1])
    assert len(compiled.dispatcher.compiled_entries()) >= 1


def raises_below(look: Callable[[], Any], x: torch.Tensor) -> Any:
    return fails(x + 1)


def fails(x: torch.Tensor) -> Any:
    print(end="")
    y = x * 3
    int("no number")
    return y


def test_tracebacks_have_the_programs_frames() -> None:
    found = []
    for step in (raises_below, braze.compile(raises_below)):
        try:
            step(stack, torch.ones(2))
        except ValueError as error:
            found.append([(f.name, f.lineno) for f in traceback.extract_tb(error.__traceback__)])
    assert found[1] == found[0]


_FRAME = [name for name in dir(types.FrameType) if not name.startswith("__")]


@pytest.mark.parametrize("name", [*_FRAME, "nothing"])
def test_whatever_a_frame_can_be_asked(name: str) -> None:
    """Either answered or a break, never an error that eager does not raise."""

    def program(x: torch.Tensor) -> Any:
        return x + 1, type(getattr(sys._getframe(), name, "none")).__name__

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        compiled = braze.compile(program)
        assert compiled(torch.ones(2))[1] == program(torch.ones(2))[1]
    assert not [w for w in warned if "raised-in-capture-only" in str(w.message)]
