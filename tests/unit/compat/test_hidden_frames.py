"""Frames that no program sees, on each version of Python."""

from __future__ import annotations

import cProfile
import pstats
import sys
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

from braze.compat.python.hidden_frames import hidden_code, is_hidden
from braze.runtime.dispatch import callees, compiled_function, eager_fallback, module_wrapper
from braze.runtime.resume import frame_calls, frame_driver, single_step


def hidden(function: Callable[..., Any]) -> Callable[..., Any]:
    assert isinstance(function, types.FunctionType)
    function.__code__ = hidden_code(function.__code__)
    return function


@hidden
def calls(function: Callable[..., Any]) -> Any:
    return function()


@hidden
def calls_in_blocks(function: Callable[..., Any]) -> Any:
    """Handlers, loops, cells, comprehensions, and so long that its jumps have prefixes."""
    found = []
    try:
        for number in range(3):
            with warnings.catch_warnings():
                if number == 1:
                    continue
                found.append([number + one for one in (1, 2)])
            try:
                raise KeyError(number)
            except KeyError as error:
                found.append([(lambda one=number: (one, number))(), error.args])
        table = {a: b + 0 for a, b in zip("abcdefgh", (1, 2, 3, 4, 5, 6, 7, 8), strict=True)}
        first = "".join(f"{a}{b}" for a, b in table.items() if b % 2 and a not in "xyz")
        second = "".join(f"{a}{b}" for a, b in table.items() if not b % 2 and a not in "xyz")
        third = {a: [b + c for c in (1, 2)] for a, b in table.items() if a > "b" or b == 1}
        fourth = {a: [b - c for c in (1, 2)] for a, b in table.items() if a > "b" and b != 1}
        found += [first, second, third, fourth, first + second, second * 2, len(third)]
        found += [first[1:], second[1:], third.get("a"), fourth.get("c"), first[-1], second[0]]
        found += [sorted(third), sorted(fourth), max(first), min(second), sum(table.values())]
    finally:
        found.append("left")
    return found, function()


def seen() -> tuple[list[str], str, int]:
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        warnings.warn("", stacklevel=2)
    names = [frame.name for frame in traceback.extract_stack()[-2:]]
    return names, sys._getframe(1).f_code.co_name, given[0].lineno


def test_no_look_at_frames_finds_one() -> None:
    line = sys._getframe().f_lineno
    assert calls(lambda: calls(seen)) == (["<lambda>", "seen"], "<lambda>", line + 1)
    plain = types.FunctionType(_plain_code(), globals())
    for _ in range(20):  # specialized by then
        found, names = calls_in_blocks(seen)
        expected, _ = plain(seen)
        assert found == expected
        assert names[1] == "test_no_look_at_frames_finds_one"


def test_no_traceback_has_one() -> None:
    def raises() -> None:
        raise ValueError("it")

    for caller in (calls, calls_in_blocks):
        try:
            caller(raises)
        except ValueError as error:
            names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names == ["test_no_traceback_has_one", "raises"]


def test_profiles_around_one_are_whole() -> None:
    profile = cProfile.Profile()

    def outer() -> None:
        for _ in range(3):
            calls(seen)

    profile.enable()
    outer()
    profile.disable()
    counts = {name: row[0] for (_, _, name), row in pstats.Stats(profile).stats.items()}  # type: ignore[attr-defined]
    assert counts["outer"] == 1
    assert counts["seen"] == 3


def test_hiding_twice_changes_nothing() -> None:
    code = calls.__code__
    assert is_hidden(code)
    assert hidden_code(code) == code
    assert not is_hidden(seen.__code__)


def test_generators_stay_as_they_are() -> None:
    def generates() -> Any:
        yield 1

    assert hidden_code(generates.__code__) == generates.__code__


def test_the_way_of_a_call_is_hidden() -> None:
    modules = (callees, compiled_function, eager_fallback, module_wrapper, frame_calls)
    for module in (*modules, frame_driver, single_step):
        functions = [
            one
            for one in vars(module).values()
            if isinstance(one, types.FunctionType) and one.__module__ == module.__name__
        ]
        assert functions
        assert all(is_hidden(one.__code__) for one in functions), module
    assert is_hidden(compiled_function.CompiledCallable.__call__.__code__)
    assert all(is_hidden(handler.__code__) for handler in single_step.HANDLERS.values())


def _plain_code() -> types.CodeType:
    """The code of `calls_in_blocks` before it was hidden."""
    import inspect

    space: dict[str, Any] = {"warnings": warnings}
    source = inspect.getsource(calls_in_blocks).partition("\n")[2]
    exec(f"from __future__ import annotations\n{source}", {**globals(), **space}, space)
    code: types.CodeType = space["calls_in_blocks"].__code__
    return code
