"""Calls of compiled functions, with hand-written entries in the compiler's place."""

from __future__ import annotations

import copy
import pickle
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from braze.errors import BrazeWarning, RecompileLimitExceeded
from braze.ir.captured.compile_request import CompiledEntry, CompileRequest
from braze.ir.captured.frame import FromGraph, FromSource, Refused, Return, SetAttribute
from braze.ir.captured.guard import Guard, GuardKind, TensorFacts
from braze.ir.captured.source import AttributeSource, LocalSource
from braze.ir.origin import UNKNOWN
from braze.runtime.dispatch.cache_entries import FrameCache
from braze.runtime.dispatch.compiled_function import CompiledCallable, Dispatcher

X = LocalSource("x")


def tensor_guard(source: Any, tensor: torch.Tensor) -> Guard:
    known = TensorFacts(
        type(tensor), tensor.dtype, tensor.device, tensor.requires_grad, tuple(tensor.shape),
        tensor.stride(),
    )  # fmt: skip
    return Guard(source, GuardKind.TENSOR_MATCH, known)


class Compiler:
    """Compiles `f(x)` to `graph([x])[0]`, specialised on the metadata of x."""

    def __init__(self, graph: Callable[[Sequence[torch.Tensor]], Any], **fields: Any) -> None:
        self.graph = graph
        self.fields = {"effects": (), "exit": Return(FromGraph(0)), **fields}
        self.requests: list[CompileRequest] = []

    def __call__(self, request: CompileRequest) -> CompiledEntry:
        self.requests.append(request)
        guards = (tensor_guard(X, request.values.locals["x"]),)
        return CompiledEntry(guards, (X,), self.graph, **self.fields)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def compiled(function: Any, compiler: Any, **options: Any) -> CompiledCallable:
    return CompiledCallable(function, Dispatcher(compiler, **options))


def test_hit_and_recompile() -> None:
    compiler = Compiler(lambda inputs: [inputs[0] * 2])
    call = compiled(double, compiler)
    x = torch.ones(3)
    assert torch.equal(call(x), x * 2) and torch.equal(call(x=x), x * 2)
    assert len(compiler.requests) == 1 and compiler.requests[0].function is double
    call(torch.ones(4))
    (failure,) = compiler.requests[1].failures
    assert str(failure) == "tensor 'L['x']' size mismatch at index 0. expected 3, actual 4"
    assert failure.subject == "L['x']" and "pad sizes" in failure.fix
    call(x)
    assert len(compiler.requests) == 2


def test_wrong_arguments_are_worded_by_the_function() -> None:
    call = compiled(double, Compiler(lambda inputs: inputs))
    for args, kwargs in [((), {}), ((1, 2), {}), ((), {"y": 1})]:
        with pytest.raises(TypeError) as expected:
            double(*args, **kwargs)
        with pytest.raises(TypeError) as actual:
            call(*args, **kwargs)
        assert str(actual.value) == str(expected.value)
        assert actual.value.__context__ is None


def test_most_recently_hit_first() -> None:
    def guarded_size(cache: FrameCache) -> int:
        return cache.entries[0].compiled.guards[0].expected.shape[0]

    call = compiled(double, Compiler(lambda inputs: [inputs[0] * 2]))
    for size in (3, 4, 5):
        call(torch.ones(size))
    cache = call._cache
    assert guarded_size(cache) == 5
    call(torch.ones(3))
    assert guarded_size(cache) == 3


def test_recompile_limit_warns_once_and_names_the_guard() -> None:
    compiler = Compiler(lambda inputs: [inputs[0] * 2])
    call = compiled(double, compiler, recompile_limit=2)
    call(torch.ones(1))
    call(torch.ones(2))
    with pytest.warns(BrazeWarning, match="compiled 2 times") as caught:
        assert torch.equal(call(torch.ones(3)), torch.ones(3) * 2)
    text = str(caught[0].message)
    assert "'L['x']' size mismatch at index 0" in text and "recompile_limit" in text
    assert "test_driver.py" in text
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(torch.ones(4))
        assert torch.equal(call(torch.ones(1)), torch.full((1,), 2.0))
    assert len(compiler.requests) == 2


def test_recompile_limit_raises_under_fullgraph() -> None:
    call = compiled(
        double, Compiler(lambda inputs: [inputs[0] * 2]), recompile_limit=1, fullgraph=True
    )
    call(torch.ones(1))
    for _ in range(2):
        with pytest.raises(RecompileLimitExceeded, match="size mismatch at index 0"):
            call(torch.ones(2))
    assert call(torch.ones(1))[0] == 2


@pytest.mark.parametrize("kind, tries", [("unsupported", 1), ("break", 2), ("raises", 5)])
def test_refused_frames_run_natively(kind: str, tries: int) -> None:
    requests: list[CompileRequest] = []

    def refuse(request: CompileRequest) -> Refused:
        requests.append(request)
        return Refused(kind, "code", "reason", "hint", UNKNOWN)

    call = compiled(double, refuse, recompile_limit=2)
    for _ in range(5):
        assert torch.equal(call(torch.ones(3)), torch.full((3,), 2.0))
    assert len(requests) == tries


def test_fault_is_replayed_natively_with_the_random_state_of_before() -> None:
    def faulty(inputs: Sequence[torch.Tensor]) -> Any:
        torch.rand(5)
        raise RuntimeError("kernel fault")

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(3)

    call = compiled(noisy, Compiler(faulty, draws_on=(torch.device("cpu"),)))
    torch.manual_seed(0)
    expected = noisy(torch.ones(3))
    torch.manual_seed(0)
    with pytest.warns(BrazeWarning, match="kernel fault"):
        assert torch.equal(call(torch.ones(3)), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call(torch.ones(3))


@pytest.mark.filterwarnings("ignore::braze.errors.BrazeWarning")
def test_exception_is_the_programs_own_with_its_own_lines() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7)

    def faulty(inputs: Sequence[torch.Tensor]) -> Any:
        raise IndexError("internal")

    call = compiled(wrong, Compiler(faulty))
    with pytest.raises(RuntimeError) as expected:
        wrong(torch.ones(3))
    with pytest.raises(RuntimeError) as actual:
        call(torch.ones(3))
    assert str(actual.value) == str(expected.value)
    assert actual.value.__context__ is None and actual.value.__cause__ is None
    names = [entry.name for entry in traceback.extract_tb(actual.value.__traceback__)]
    assert names == ["test_exception_is_the_programs_own_with_its_own_lines", "wrong"]


def test_reset_compiles_afresh() -> None:
    compiler = Compiler(lambda inputs: [inputs[0] * 2])
    call = compiled(double, compiler)
    call(torch.ones(3))
    call._dispatcher.reset()
    call(torch.ones(3))
    assert len(compiler.requests) == 2


def test_effects_are_applied() -> None:
    class Holder:
        def __init__(self) -> None:
            self.data = torch.ones(2)

    def store(x: Any) -> Any:
        x.data = x.data + 1
        return x.data

    data = AttributeSource(X, "data")

    def compile_frame(request: CompileRequest) -> CompiledEntry:
        x = request.values.locals["x"]
        return CompiledEntry(
            (Guard(X, GuardKind.TYPE_MATCH, Holder), tensor_guard(data, x.data)),
            (data,),
            lambda inputs: [inputs[0] + 1],
            (SetAttribute(FromSource(X), "data", result := FromGraph(0)),),
            Return(result),
        )

    call = compiled(store, compile_frame)
    holder = Holder()
    assert call(holder) is holder.data and call(holder)[0] == 3 and holder.data[0] == 3


def test_changed_defaults_and_code() -> None:
    def first(x: Any, y: int = 1) -> Any:
        return x + y

    def second(x: Any, y: int = 1) -> Any:
        return x - y

    def refuse(request: CompileRequest) -> Refused:
        return Refused("break", "", "", "", UNKNOWN)

    call = compiled(first, refuse)
    assert call(1) == 2
    first.__defaults__ = (5,)
    assert call(1) == 6
    first.__code__ = second.__code__
    assert call(1) == -4


def test_binds_as_a_method() -> None:
    def refuse(request: CompileRequest) -> Refused:
        return Refused("break", "", "", "", UNKNOWN)

    class Model:
        def scale(self, x: int) -> tuple[Any, int]:
            return self, x

        fast = compiled(scale, refuse)

    model = Model()
    assert model.fast(3) == (model, 3) and Model.fast(model, x=3) == (model, 3)
    assert Model.fast.__name__ == "scale"


def by_name(x: torch.Tensor) -> torch.Tensor:
    return x * 2


by_name = compiled(by_name, Compiler(lambda inputs: [inputs[0] * 2]))  # type: ignore[assignment]


def test_copied_and_pickled_as_functions_are() -> None:
    assert copy.deepcopy(by_name) is by_name and copy.copy(by_name) is by_name
    assert pickle.loads(pickle.dumps(by_name)) is by_name


def test_an_interrupted_compile_leaves_nothing() -> None:
    compiler = Compiler(lambda inputs: [inputs[0] * 2])
    interrupts = [KeyboardInterrupt()]

    def interrupted(request: CompileRequest) -> CompiledEntry:
        if interrupts:
            raise interrupts.pop()
        return compiler(request)

    call = compiled(double, interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(torch.ones(3))
    assert call._cache.entries == () and call._cache.refusals == ()
    assert call(torch.ones(3))[0] == 2 and len(compiler.requests) == 1


def test_two_threads_compile_once() -> None:
    compiler = Compiler(lambda inputs: [inputs[0] * 2])

    def slow(request: CompileRequest) -> CompiledEntry:
        time.sleep(0.05)
        return compiler(request)

    call = compiled(double, slow)
    results: list[torch.Tensor] = []
    threads = [
        threading.Thread(target=lambda: results.append(call(torch.ones(3)))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and all(result[0] == 2 for result in results)
    assert len(compiler.requests) == 1


def test_a_guard_that_never_holds_is_reported() -> None:
    def compile_frame(request: CompileRequest) -> CompiledEntry:
        guards = (Guard(X, GuardKind.EQUALS_MATCH, 7),)
        return CompiledEntry(guards, (), lambda inputs: [], (), Return(FromGraph(0)))

    call = compiled(double, compile_frame)
    with pytest.warns(BrazeWarning, match="very values"):
        assert call(2) == 4
