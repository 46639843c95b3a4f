"""The driver loop over graph breaks, on a recorder that breaks at everything that computes."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from braze.runtime.dispatch.compiled_function import CompiledCallable, Dispatcher
from tests.unit.runtime import continuation_check
from tests.unit.runtime import continuation_corpus as corpus
from tests.unit.runtime.recorder import Recorder


def compiled(function: Any, recorder: Recorder | None = None, **options: Any) -> CompiledCallable:
    return CompiledCallable(function, Dispatcher(recorder or Recorder(), **options))


def outcome(make: Any, wrap: Any) -> tuple[Any, ...]:
    function, arguments = make()
    log: list[Any] = corpus._Log() if function is corpus._Log.run else []
    call = wrap(function)
    return continuation_check.observe(lambda: call(log, *arguments), log)


@pytest.mark.parametrize("name, make", corpus.CASES, ids=[name for name, _ in corpus.CASES])
@pytest.mark.parametrize("inlined", [(), (corpus.fails,)], ids=["flat", "inlined"])
def test_corpus_by_breaks(name: str, make: Any, inlined: tuple[Any, ...]) -> None:
    expected = outcome(make, lambda function: function)
    recorder = Recorder(inlined)
    dispatcher = Dispatcher(recorder, recompile_limit=64)
    actual = outcome(make, lambda function: CompiledCallable(function, dispatcher))
    assert actual == expected
    if name != "super_in_the_frame_itself":
        first = len(recorder.requests)
        again = outcome(make, lambda function: CompiledCallable(function, dispatcher))
        assert again == expected
        own = {id(make()[0].__code__) for _ in range(2)}
        if len(own) == 1 and "closure" not in name:
            assert len(recorder.requests) == first, "the second call compiled again"


def test_breaks_are_counted_and_the_loop_stays_flat() -> None:
    depths: list[int] = []

    def depth() -> None:
        frame, count = sys._getframe(), 0
        while frame:
            frame, count = frame.f_back, count + 1  # type: ignore[assignment]
        depths.append(count)

    def loop(n: int, probe: Any) -> int:
        total = 0
        for i in range(n):
            probe()
            total += i
        return total

    call = compiled(loop)
    assert call(50, depth) == sum(range(50))
    assert len(set(depths)) == 1
    tally = call.dispatcher.tally
    assert int(tally.broken) > 100 and not tally.left()


def test_entries_of_a_loop_are_made_once() -> None:
    def loop(n: int) -> int:
        total = 0
        for i in range(n):
            total = total + i
        return total

    recorder = Recorder()
    call = compiled(loop, recorder)
    call(3)
    count = len(recorder.requests)
    assert call(100) == sum(range(100)) and len(recorder.requests) == count


def test_truth_of_a_tensor_picks_the_way() -> None:
    def branch(x: torch.Tensor) -> str:
        if x.sum() > 0:
            return "positive"
        return "negative"

    call = compiled(branch)
    assert call(torch.ones(2)) == "positive" and call(-torch.ones(2)) == "negative"


def test_callees_go_through_the_compiler() -> None:
    def helper(x: int, *, scale: int = 2) -> int:
        return x * scale

    def caller(x: int) -> int:
        return helper(x) + helper(x, scale=3) + abs(-x)

    seen: list[Any] = []

    def compile_callee(callable: Any) -> Any:
        seen.append(callable)
        return callable

    call = compiled(caller, compile_callee=compile_callee)
    # the closure cell keeps the frame from the recorder: helper is a global here
    namespace = {"helper": helper, "abs": abs}
    import types

    function = types.FunctionType(
        compile("def f(x): return helper(x) + helper(x, scale=3) + abs(-x)", "f", "exec").co_consts[
            0
        ],
        namespace,
    )
    call = compiled(function, compile_callee=compile_callee)
    assert call(5) == 30
    assert seen == [helper, helper, abs]


def inner_raises(x: int) -> int:
    y = x + 1
    return [][y]


def middle(x: int) -> int:
    return inner_raises(x) + 1


def outer(x: int) -> Any:
    try:
        return middle(x)
    except IndexError as error:
        return error


def test_exception_of_an_inlined_callee_passes_through_its_callers() -> None:
    recorder = Recorder((inner_raises, middle))
    error = compiled(outer, recorder)(3)
    lines = []
    trace = error.__traceback__
    while trace is not None:
        lines.append((trace.tb_frame.f_code.co_name, trace.tb_lineno))
        trace = trace.tb_next
    assert lines == [
        ("outer", outer.__code__.co_firstlineno + 2),
        ("middle", middle.__code__.co_firstlineno + 1),
        ("inner_raises", inner_raises.__code__.co_firstlineno + 2),
    ]
    assert error.__context__ is None


def test_interrupt_runs_the_users_handlers() -> None:
    log: list[str] = []

    def interrupted(stop: Any) -> None:
        try:
            stop()
        finally:
            log.append("finally")

    def stop() -> None:
        raise KeyboardInterrupt

    namespace = interrupted.__globals__
    namespace["log_for_interrupt"] = log
    with pytest.raises(KeyboardInterrupt):
        compiled(interrupted)(stop)
    assert log == ["finally"]
    del namespace["log_for_interrupt"]
