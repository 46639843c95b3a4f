"""Threads that compile and call at the same time, calls inside of calls, and what may be freed."""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal


def run_together(*works: Callable[[], Any]) -> None:
    """Each in a thread of its own, begun at one moment; the first failure is raised."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> None:
        try:
            barrier.wait(30)
            work()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "a thread waits forever"
    if failures:
        raise failures[0]


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads take turns a thousand times as often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(interval)


# --- threads -------------------------------------------------------------------------------------


def test_one_function_compiled_once_a_shape(journal: Journal, impatient: None) -> None:
    def shared_by_threads(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).relu() + x.sum()

    compiled = braze.compile(shared_by_threads, dynamic=False)

    def work(seed: int) -> Callable[[], None]:
        def calls() -> None:
            generator = torch.Generator().manual_seed(seed)
            for count in range(16):
                x = torch.randn(1 + count % 4, generator=generator)
                torch.testing.assert_close(compiled(x), shared_by_threads(x))

        return calls

    run_together(*[work(seed) for seed in range(4)])
    assert len(journal.records()) == 4


def test_different_functions_and_states_of_threads(impatient: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4))
    compiled = braze.compile(model)
    x = torch.randn(3, 4)

    @contextmanager
    def plain() -> Iterator[None]:
        yield

    states: list[Callable[[], Any]] = [
        plain,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    ]

    def work(state: Callable[[], Any]) -> Callable[[], None]:
        def calls() -> None:
            with state():
                expected = model(x)
                for _ in range(10):
                    actual = compiled(x)
                    torch.testing.assert_close(actual, expected)
                    assert actual.dtype == expected.dtype
                    assert actual.requires_grad == expected.requires_grad
                    other = braze.compile(lambda y: (y @ y).sin())
                    y = torch.randn(2, 2)
                    torch.testing.assert_close(other(y), (y @ y).sin())

        return calls

    run_together(*map(work, states))


def test_threads_with_breaks_and_writes(impatient: None) -> None:
    class Counter:
        def __init__(self) -> None:
            self.calls = 0

    def step(counter: Counter, x: torch.Tensor) -> torch.Tensor:
        counter.calls += 1
        y = x + counter.calls
        braze.graph_break()
        counter.calls += 1
        return y * 2

    compiled = braze.compile(step, dynamic=False)

    def work() -> None:
        counter, x = Counter(), torch.ones(2)
        for call in range(1, 5):
            result = compiled(counter, x)
            assert counter.calls == 2 * call
            assert torch.equal(result, (x + 2 * call - 1) * 2)

    run_together(*[work] * 3)


def test_training_in_two_threads(impatient: None) -> None:
    def work(seed: int) -> Callable[[], None]:
        def steps() -> None:
            model = torch.nn.Linear(3, 3)
            compiled = braze.compile(model)
            x = torch.randn(4, 3)
            for _ in range(5):
                compiled(x).square().sum().backward()
                actual = [p.grad for p in model.parameters()]
                model.zero_grad()
                model(x).square().sum().backward()
                torch.testing.assert_close(actual, [p.grad for p in model.parameters()])
                model.zero_grad()

        return steps

    run_together(*map(work, range(3)))


def test_reset_while_others_call(impatient: None) -> None:
    compiled = braze.compile(lambda x: x * 3)

    def calls() -> None:
        for _ in range(60):
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))

    def resets() -> None:
        for _ in range(10):
            braze.reset()

    run_together(calls, calls, resets)


# --- calls inside of calls -----------------------------------------------------------------------


def test_a_compiled_function_that_calls_itself() -> None:
    @braze.compile
    def power(x: torch.Tensor, n: int) -> torch.Tensor:
        return x if n == 0 else x * power(x, n - 1)

    assert torch.equal(power(torch.full((2,), 2.0), 5), torch.full((2,), 64.0))


def test_a_hook_that_calls_the_compiled_module() -> None:
    model = torch.nn.Linear(2, 2)
    compiled = braze.compile(model)
    depths: list[int] = []

    def hook(module: Any, args: tuple[torch.Tensor], result: torch.Tensor) -> Any:
        if len(args[0]) > 1:
            depths.append(len(args[0]))
            return result + compiled(args[0][1:]).sum()
        return None

    handle = model.register_forward_hook(hook)
    x = torch.randn(3, 2)
    actual, seen = compiled(x), list(depths)
    depths.clear()
    handle.remove()
    plain = [model(x[i:]) for i in range(3)]
    expected = plain[0] + (plain[1] + plain[2].sum()).sum()
    torch.testing.assert_close(actual, expected)
    assert seen == [3, 2]


def test_a_break_that_calls_the_function_again() -> None:
    calls: list[int] = []

    @braze.disable
    def again(x: torch.Tensor, n: int) -> torch.Tensor:
        calls.append(n)
        return nested(x, n - 1) if n else x

    def plain(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x + n
        z = again(y, n)
        return z * 2 + y

    nested = braze.compile(plain)
    assert torch.equal(nested(torch.zeros(1), 3), torch.tensor([181.0]))
    assert calls == [3, 2, 1, 0]


def test_a_backend_that_compiles() -> None:
    inner = braze.compile(lambda x: x.cos())

    def backend(module: Any, inputs: list[torch.Tensor]) -> Any:
        torch.testing.assert_close(inner(torch.ones(3)), torch.ones(3).cos())
        other = braze.compile(lambda x: x.tanh())
        torch.testing.assert_close(other(torch.ones(3)), torch.ones(3).tanh())
        return module.forward

    compiled = braze.compile(lambda x: x.sin() + 1, backend=backend)
    torch.testing.assert_close(compiled(torch.ones(2)), torch.ones(2).sin() + 1)


def test_a_function_that_compiles_another() -> None:
    def make(x: torch.Tensor) -> torch.Tensor:
        inner = braze.compile(lambda y: y.exp())
        return inner(x) + inner(x + 1)

    x = torch.ones(2)
    torch.testing.assert_close(braze.compile(make)(x), x.exp() + (x + 1).exp())


# --- what may be freed ---------------------------------------------------------------------------


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x).relu()


def live_frames() -> int:
    """Of Braze, and of this file: those of other threads come and go."""
    places = __file__, str(Path(braze.__file__).parent)
    frames = [thing for thing in gc.get_objects() if type(thing) is types.FrameType]
    return sum(frame.f_code.co_filename.startswith(places) for frame in frames)


def live_tensors() -> int:
    return sum(type(thing) is torch.Tensor for thing in gc.get_objects())


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_a_compiled_model_can_be_freed(grad: bool) -> None:
    model = Small()
    compiled = braze.compile(model)
    with torch.set_grad_enabled(grad):
        for _ in range(4):
            result = compiled(torch.randn(2, 4))
            if grad:
                result.sum().backward()
    gone = [weakref.ref(model), weakref.ref(model.linear), weakref.ref(model.linear.weight)]
    del model, compiled, result
    gc.collect()
    assert [reference() for reference in gone] == [None] * 3


def test_models_given_as_arguments_can_be_freed() -> None:
    compiled = braze.compile(lambda model, x: model(x) + 1)
    gone = []
    for _ in range(4):
        model = Small()
        for _ in range(3):
            compiled(model, torch.randn(2, 4))
        gone.append(weakref.ref(model.linear.weight))
    del model
    gc.collect()
    assert [reference() for reference in gone] == [None] * 4


def test_entries_die_with_their_function() -> None:
    held = torch.nn.Linear(2, 2)

    def make() -> Any:
        def function(x: torch.Tensor) -> torch.Tensor:
            braze.graph_break()
            return held(x).relu()

        return function

    function = make()
    compiled = braze.compile(function)
    for _ in range(3):
        compiled(torch.randn(2, 2))
    gone = [weakref.ref(function), weakref.ref(compiled._dispatcher.caches()[0].entries[0].graph)]
    del function, compiled
    gc.collect()
    assert [reference() for reference in gone] == [None] * 2


def test_calls_leave_no_frames_and_no_tensors() -> None:
    def loop(x: torch.Tensor, n: int) -> torch.Tensor:
        for i in range(n):
            x = x + i
            braze.graph_break()
        if n > 9:
            raise ValueError(n)
        return x

    compiled = braze.compile(loop, dynamic=False)

    def calls() -> None:
        compiled(torch.ones(2), 3)
        with pytest.raises(ValueError):
            compiled(torch.ones(2), 10)

    for _ in range(3):
        calls()
    gc.collect()
    before = live_frames(), live_tensors()
    for _ in range(5):
        calls()
    gc.collect()
    assert live_frames() <= before[0] and live_tensors() <= before[1]
