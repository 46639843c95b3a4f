"""The way through a compiled function in C++: arguments are bound as CPython binds them, and what
it does not know is left to Python."""

from __future__ import annotations

import gc
import itertools
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.ir.captured.compile_request import CompiledEntry, FrameValues
from braze.ir.captured.frame import FromConstant, FromGraph, NewSequence, Recipe, Return, SetItem
from braze.ir.captured.source import LocalSource
from braze.runtime.dispatch.argument_binding import make_binder
from braze.runtime.dispatch.cache_entries import CacheEntry, FrameCache
from braze.runtime.dispatch.compiled_function import CompiledCallable
from braze.runtime.dispatch.fast_path import UNKNOWN, Entrance, Undone, make_entrance
from braze.runtime.guards.native_extension import LOADER, NativeLoader
from braze.runtime.resume.reconstruct import picked_results

Graph = Callable[[Any], Any]


@pytest.fixture(autouse=True)
def _extension() -> None:
    if LOADER.wait() is None:
        pytest.skip("the extension cannot be built here")


_NONE = FromConstant(None)


def _no_results(inputs: Any) -> list[Any]:
    return []


def _entry(graph: Graph, result: Recipe, values: FrameValues) -> CacheEntry:
    """One that a snapshot proves. result: what it returns."""
    entry = CacheEntry(CompiledEntry((), (), graph, (), Return(result)))
    for _ in range(3):
        assert entry.check(values) is not None
    assert entry.memory.checks
    return entry


def _cache(function: types.FunctionType, entry: CacheEntry | None) -> FrameCache:
    cache = FrameCache(function.__code__, 0, 8)
    cache.entries = () if entry is None else (entry,)
    return cache


def _entrance(
    function: Any, graph: Graph = _no_results, result: Recipe = _NONE
) -> tuple[Entrance, CacheEntry, FrameCache]:
    values = FrameValues({}, (), function.__globals__)
    entry = _entry(graph, result, values)
    cache = _cache(function, entry)
    made = make_entrance(function, cache, cache.tally.calls.cell)
    assert made is not None
    return made, entry, cache


# --- arguments -----------------------------------------------------------------------------------


def _positional(a: Any, b: Any) -> None: ...
def _defaults(a: Any, b: Any = 2, c: Any = 3) -> None: ...
def _positional_only(a: Any, b: Any = 2, /, c: Any = 3) -> None: ...
def _keyword_only(a: Any, *, b: Any, c: Any = 3) -> None: ...
def _rest(a: Any, *rest: Any, c: Any = 3) -> None: ...
def _more(a: Any, /, b: Any = 2, **more: Any) -> None: ...
def _all(a: Any, /, b: Any, *rest: Any, c: Any, d: Any = 4, **more: Any) -> None: ...
def _nothing() -> None: ...


_KEYWORDS = ("a", "b", "c", "d", "z")


@pytest.mark.parametrize(
    "function",
    [_positional, _defaults, _positional_only, _keyword_only, _rest, _more, _all, _nothing],
)
def test_arguments_are_bound_as_cpython_binds_them(function: Any) -> None:
    entrance, entry, _ = _entrance(function)
    entry.result, entry.replay = None, lambda values, results: values.locals
    bind = make_binder(function)
    bound = 0
    for count in range(4):
        args = tuple(range(10, 10 + count))
        for size in range(4):
            for names in itertools.permutations(_KEYWORDS, size):
                kwargs = {name: f"by {name}" for name in names}
                try:
                    expected = bind(*args, **kwargs)
                except TypeError:
                    assert entrance(args, kwargs) is UNKNOWN
                    continue
                found = entrance(args, kwargs)
                assert found == expected and list(found) == list(expected)
                bound += 1
    assert bound


def test_cells_and_defaults_are_those_of_the_call() -> None:
    def outer(k: Any) -> Any:
        def function(a: Any, b: Any = 1, *, c: Any = 2) -> Any:
            return k

        return function

    function = outer(5)
    entrance, entry, _ = _entrance(function)
    entry.result, entry.replay = None, lambda values, results: values.locals
    found = entrance((0,), {})
    assert {**found, "k": found["k"].cell_contents} == {"a": 0, "b": 1, "c": 2, "k": 5}
    function.__defaults__, function.__kwdefaults__ = (7,), {"c": 8}
    found = entrance((0,), {})
    assert (found["b"], found["c"]) == (7, 8)
    function.__defaults__ = None
    assert entrance((0,), {}) is UNKNOWN


def test_a_call_changes_no_keywords() -> None:
    entrance, entry, _ = _entrance(_more)
    entry.result, entry.replay = None, lambda values, results: values.locals
    kwargs = {"b": 1, "y": 2}
    assert entrance((0,), kwargs) == {"a": 0, "b": 1, "more": {"y": 2}}
    assert kwargs == {"b": 1, "y": 2}


# --- the graph and the result --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "picked", "expected"),
    [
        (FromGraph(1), 1, "second"),
        (NewSequence(tuple, (FromGraph(1), FromGraph(0))), (1, 0), ("second", "first")),
        (NewSequence(tuple, ()), (), ()),
        (NewSequence(list, (FromGraph(0),)), None, ["first"]),
        (NewSequence(tuple, (FromGraph(0), FromConstant(3))), None, ("first", 3)),
        (FromConstant("known"), None, "known"),
    ],
)
@pytest.mark.parametrize("kind", [list, tuple])
def test_results(kind: type, result: Recipe, picked: Any, expected: Any) -> None:
    entrance, entry, _ = _entrance(_nothing, lambda inputs: kind(("first", "second")), result)
    assert entry.result == picked
    assert entrance((), {}) == expected


def test_effects_are_replayed() -> None:
    target = LocalSource("a")
    effect = SetItem(target, FromConstant("k"), FromGraph(0))  # type: ignore[arg-type]
    assert picked_results((effect,), Return(FromGraph(0))) is None


def test_what_the_graph_raises_is_given_to_python() -> None:
    def fail(inputs: Any) -> Any:
        raise ValueError("in the graph")

    entrance, entry, _ = _entrance(_nothing, fail)
    answer = entrance((), {})
    assert type(answer) is Undone and answer.entry is entry
    assert str(answer.fault) == "in the graph" and answer.fault.__traceback__ is not None

    def interrupt(inputs: Any) -> Any:
        raise KeyboardInterrupt

    entrance, _, _ = _entrance(_nothing, interrupt)
    with pytest.raises(KeyboardInterrupt):
        entrance((), {})


def test_what_a_replay_raises_is_raised() -> None:
    entrance, entry, _ = _entrance(_nothing)

    def fail(values: Any, results: Any) -> Any:
        raise ValueError("in the replay")

    entry.replay = fail
    with pytest.raises(ValueError, match="in the replay"):
        entrance((), {})


def test_what_it_does_not_know_it_leaves_to_python() -> None:
    def function() -> Any:
        return 1

    entrance, entry, cache = _entrance(function)
    assert entrance((), {}) is None
    entry.is_plain = False
    assert entrance((), {}) is UNKNOWN
    entry.is_plain = True
    checks, entry.memory.checks = entry.memory.checks, (lambda values: [],)
    assert entrance((), {}) is UNKNOWN
    entry.memory.checks = ()
    assert entrance((), {}) is UNKNOWN
    entry.memory.checks = checks
    assert entrance((), {}) is None
    cache.clear()
    assert entrance((), {}) is UNKNOWN
    cache.entries = (entry,)
    assert entrance((), {}) is None
    function.__code__ = _nothing.__code__
    assert entrance((), {}) is UNKNOWN


def test_there_is_none_until_the_extension_is_loaded() -> None:
    cache = _cache(_nothing, None)
    assert make_entrance(_nothing, cache, cache.tally.calls.cell, NativeLoader()) is None


def test_calls_leave_nothing_behind() -> None:
    results = ["first", "second"]
    recipe = NewSequence(tuple, (FromGraph(0), FromGraph(1)))
    entrance, _, _ = _entrance(_all, lambda inputs: results, recipe)

    def calls() -> None:
        for _ in range(200):
            entrance((1, 2, 3), {"c": 4, "z": 5})
            entrance((1,), {})
            entrance((1, 2), {"c": 4, "b": 5})

    calls()
    gc.collect()
    before = sys.getallocatedblocks(), sys.getrefcount(results[0]), sys.getrefcount(UNKNOWN)
    calls()
    gc.collect()
    after = sys.getallocatedblocks(), sys.getrefcount(results[0]), sys.getrefcount(UNKNOWN)
    assert after[0] - before[0] < 20 and after[1:] == before[1:]


def test_it_goes_with_its_function() -> None:
    def make() -> tuple[Any, Any]:
        def function() -> Any:
            return function

        entrance, entry, _ = _entrance(function)
        entry.replay = entrance  # a cycle
        return weakref.ref(function), weakref.ref(entry.graph)

    gone = make()
    gc.collect()
    assert gone[0]() is None


# --- in a compiled function ----------------------------------------------------------------------


def _through_entrance(compiled: Any, *args: Any) -> Any:
    """The result of a call that the entrance alone makes."""
    assert isinstance(compiled, CompiledCallable) and compiled._entrance is not None
    answer = compiled._entrance(args, {})
    assert type(answer) is not Undone
    return answer


def test_a_compiled_function_is_called_by_it() -> None:
    @braze.compile
    def function(x: torch.Tensor, n: int = 2) -> torch.Tensor:
        return x.sin() * n

    x = torch.randn(4)
    for _ in range(4):
        function(x)
    torch.testing.assert_close(_through_entrance(function, x), x.sin() * 2)
    other = torch.randn(5)
    assert function._entrance((other,), {}) is UNKNOWN  # type: ignore[attr-defined]
    for _ in range(4):
        torch.testing.assert_close(function(other), other.sin() * 2)
        torch.testing.assert_close(function(x, 3), x.sin() * 3)
        torch.testing.assert_close(function(x, n=4), x.sin() * 4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'm'"):
        function(x, m=1)


def test_a_fault_is_answered_by_the_function_itself() -> None:
    @braze.compile
    def function(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at] * 2

    x, at = torch.randn(4), torch.tensor([1])
    for _ in range(4):
        function(x, at)
    torch.testing.assert_close(_through_entrance(function, x, at), x[at] * 2)
    with pytest.raises(IndexError, match=r"out of bounds|out of range") as raised:
        function(x, torch.tensor([7]))
    files = [entry.path for entry in raised.traceback]
    assert not any("braze/runtime" in str(file) for file in files)
    torch.testing.assert_close(function(x, at), x[at] * 2)


def test_effects_come_with_it() -> None:
    @braze.compile
    def function(x: torch.Tensor, seen: list[Any]) -> torch.Tensor:
        seen.append(x + 1)
        return x * 2

    x = torch.randn(4)
    for _ in range(4):
        seen: list[Any] = []
        torch.testing.assert_close(function(x, seen), x * 2)
        torch.testing.assert_close(seen, [x + 1])
