"""Continuations: every function of the corpus, entered before each of its instructions."""

from __future__ import annotations

import gc
import types
import weakref
from pathlib import Path
from typing import Any

import pytest

from braze.compat.python.bytecode import decode
from braze.compat.python.code_objects import (
    Handler,
    encode,
    entry_offset,
    instruction_at,
    read_handlers,
    write_handlers,
)
from braze.ir.captured.frame import NULL
from braze.runtime.resume.continuation import Point, make_continuation
from tests.interpreters import check_under
from tests.unit.runtime import continuation_check
from tests.unit.runtime import continuation_corpus as corpus

_CHECK = Path(__file__).with_name("continuation_check.py")


@pytest.mark.parametrize("name, make", corpus.CASES, ids=[name for name, _ in corpus.CASES])
def test_corpus(name: str, make: Any) -> None:
    tried, wrong = continuation_check.differences(name, make)
    assert tried >= 3 and not wrong, "\n".join(wrong)


def test_the_corpus_is_large_enough() -> None:
    assert len(corpus.CASES) >= 60
    assert len({name for name, _ in corpus.CASES}) == len(corpus.CASES)


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14", "3.15"])
def test_corpus_under_other_versions(version: str) -> None:
    check_under(version, _CHECK)


# --- details -------------------------------------------------------------------------------------


def offset_of(function: Any, name: str, number: int = 0) -> int:
    found = [item.offset for item in decode(function.__code__).instructions if item.name == name]
    return found[number]


def continue_at(
    function: Any,
    offset: int,
    values: dict[str, Any],
    stack: tuple[Any, ...] = (),
    exception: BaseException | None = None,
) -> types.FunctionType:
    nulls = tuple(slot is NULL for slot in stack)
    point = Point(offset, tuple(values), nulls, exception is not None)
    made = make_continuation(function.__code__, point)
    return made.function(function.__globals__, values, stack, exception)


def names(x: int) -> list[str]:
    return sorted(locals())


def test_locals_show_nothing_of_ours() -> None:
    offset = offset_of(names, "LOAD_GLOBAL")
    assert continue_at(names, offset, {"x": 1})() == ["x"]
    assert continue_at(names, offset, {})() == []


class Thing:
    pass


def drops(x: Any, alive: Any) -> bool:
    del x
    gc.collect()
    return alive() is None


def test_dropped_values_are_freed_in_the_body() -> None:
    thing = Thing()
    alive = weakref.ref(thing)
    function = continue_at(drops, offset_of(drops, "DELETE_FAST"), {"x": thing, "alive": alive})
    del thing
    assert function()


def handles(x: Any) -> Any:
    try:
        x.run()
    except KeyError as error:
        try:
            raise ValueError("second")
        except ValueError as second:
            return error, second.__context__


def test_raising_at_an_instruction_runs_the_frames_handler() -> None:
    error = KeyError("first")
    offset = offset_of(handles, "CALL")
    function = continue_at(handles, offset, {"x": None}, (NULL, None), error)
    caught, context = function()
    assert caught is error and context is error


def test_a_raise_shows_the_users_line() -> None:
    error = IndexError("outer")
    function = continue_at(handles, offset_of(handles, "CALL"), {"x": None}, (NULL, None), error)
    with pytest.raises(IndexError) as caught:
        function()
    trace = caught.value.__traceback__
    assert trace is not None and trace.tb_next is not None
    line = handles.__code__.co_firstlineno + 2
    assert trace.tb_next.tb_lineno == line and trace.tb_next.tb_next is None
    code = trace.tb_next.tb_frame.f_code
    assert (code.co_name, code.co_filename) == ("handles", __file__)
    positions = list(code.co_positions())[trace.tb_next.tb_lasti // 2]
    assert positions[0] == line and positions[2] == 8


def test_lines_of_the_body_are_unchanged() -> None:
    code = handles.__code__
    point = Point(offset_of(handles, "CALL"), ("x",), (True, False))
    made = make_continuation(code, point)
    shifted = list(made.code.co_positions())[made.units :]
    assert shifted == list(code.co_positions())


def test_one_continuation_serves_many_calls() -> None:
    def add(x: int, y: int) -> int:
        return x + y

    point = Point(offset_of(add, "BINARY_OP"), ("x", "y"), (False, False))
    made = make_continuation(add.__code__, point)
    for a in range(5):
        assert made.function(globals(), {"x": 0, "y": 0}, (a, 10))() == a + 10


def test_generators_and_places_before_the_frame_are_refused() -> None:
    def generator() -> Any:
        yield 1

    def closure() -> Any:
        return lambda: x  # noqa: F821

    x = 1
    del x
    with pytest.raises(ValueError, match="generator"):
        make_continuation(generator.__code__, Point(10, (), ()))
    assert entry_offset(closure.__code__) >= 0
    inner = closure().__code__
    assert entry_offset(inner) > 0
    with pytest.raises(ValueError, match="set up"):
        make_continuation(inner, Point(0, ("x",), ()))
    with pytest.raises(ValueError, match="no instruction"):
        instruction_at(inner, 10_000)


def test_exception_tables_round_trip() -> None:
    handlers = [Handler(0, 1, 70, 0, False), Handler(63, 5000, 300_000, 130, True)]
    assert read_handlers(write_handlers(handlers)) == handlers
    for _, make in corpus.CASES:
        code = make()[0].__code__
        assert write_handlers(read_handlers(code.co_exceptiontable)) == code.co_exceptiontable


def test_long_arguments_get_prefixes() -> None:
    assert len(encode("LOAD_CONST", 255)) == 2
    assert len(encode("LOAD_CONST", 256)) == 4
    assert len(encode("LOAD_CONST", 70_000)) == 6
