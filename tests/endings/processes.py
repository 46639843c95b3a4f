"""Programs in which threads, children, finalizers and handlers meet the compiler: no one waits for
ever."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

import braze
from tests.endings.run import program

SLOW = 0.5  # seconds that a backend compiles


def slow_backend(module: Any, inputs: Any) -> Any:
    time.sleep(SLOW)
    return module.forward


def double(x: Any) -> Any:
    return x * 2


def in_child(call: Callable[[], Any]) -> Any:
    """Whether a call returns what is true in a forked child, which ends within a minute."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)  # against a hang: no program needs it
        os._exit(0 if call() else 1)
    return os.waitpid(child, 0)[1] == 0


def started(call: Callable[[], Any]) -> threading.Thread:
    """A thread in the middle of a call that takes `SLOW` seconds."""
    thread = threading.Thread(target=call)
    thread.start()
    time.sleep(SLOW / 2)
    return thread


def is_right(function: Any, n: int = 3) -> bool:
    """Whether a compiled `double` gives what it should."""
    return bool(torch.equal(function(torch.ones(n)), torch.full((n,), 2.0)))


@program
def forks_while_a_thread_compiles() -> Any:
    compiled = braze.compile(double, backend=slow_backend)
    thread = started(lambda: compiled(torch.ones(2)))
    assert in_child(lambda: is_right(compiled, 5))
    assert in_child(lambda: is_right(braze.compile(double, backend="aot_eager")))
    assert in_child(gc.isenabled)
    thread.join()
    return double, torch.ones(2)


@program
def forks_behind_parallel_kernels() -> Any:
    def total(x: Any) -> Any:
        return (x * 2 + 1).sin()

    x = torch.ones(1 << 20)
    compiled = braze.compile(total)
    expected = total(x)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), expected)

    def is_close(found: Any, wanted: Any) -> bool:
        torch.set_num_threads(1)  # torch's own parallel operators wait forever in a forked child
        return bool(torch.allclose(found, wanted))

    assert in_child(lambda: is_close(compiled(x), expected))
    assert in_child(lambda: is_close(compiled(x[:-5]), expected[:-5]))
    return total, torch.ones(2)


@program
def forks_within_a_compile() -> Any:
    def forking(module: Any, inputs: Any) -> Any:
        results.append(in_child(lambda: is_right(braze.compile(double, backend="aot_eager"))))
        return module.forward

    results: Any = []
    assert is_right(braze.compile(double, backend=forking))
    assert results == [True]
    return double, torch.ones(2)


@program
def threads_call_first_at_once() -> Any:
    compiled = braze.compile(double, backend=slow_backend)
    results: Any = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(is_right(compiled, n % 3 + 2)))
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 12
    return double, torch.ones(2)


@program
def backends_call_each_others_functions() -> Any:
    def calling(other: list[Any]) -> Any:
        def backend(module: Any, inputs: Any) -> Any:
            barrier.wait(10)
            results.append(is_right(other[0]))
            return module.forward

        return backend

    barrier, results = threading.Barrier(2), []
    first: Any = []
    second: Any = []
    first.append(braze.compile(double, backend=calling(second)))
    second.append(braze.compile(lambda x: x * 2, backend=calling(first)))
    threads = [threading.Thread(target=is_right, args=(f[0],)) for f in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True, True]
    return double, torch.ones(2)


@program
def a_backend_compiles_the_same_function() -> Any:
    def backend(module: Any, inputs: Any) -> Any:
        if not nested:
            nested.append(True)
            nested.append(is_right(compiled))
            nested.append(is_right(braze.compile(double, backend="aot_eager")))
        return module.forward

    nested: Any = []
    compiled = braze.compile(double, backend=backend)
    assert is_right(compiled)
    assert nested == [True] * 3
    return double, torch.ones(2)


@program
def resets_while_a_thread_compiles() -> Any:
    def backend(module: Any, inputs: Any) -> Any:
        time.sleep(SLOW)
        braze.compile(double)
        return module.forward

    compiled = braze.compile(double, backend=backend)
    thread = started(lambda: compiled(torch.ones(2)))
    braze.reset()
    thread.join()
    assert is_right(compiled)
    return double, torch.ones(2)


class Closing:
    """Calls compiled code, and compiles some, where it ends."""

    compiled: Any = None
    ends: list[Any] = []

    def __del__(self) -> None:
        Closing.ends.append(is_right(Closing.compiled))
        Closing.ends.append(is_right(braze.compile(double, backend="aot_eager")))


@program
def finalizers_call_compiled_code() -> Any:
    def call(x: Any, items: Any) -> Any:
        y = x * 2
        items.clear()
        holder = [Closing()]
        del holder
        return y + 1

    Closing.compiled = braze.compile(double, backend="aot_eager")
    is_right(Closing.compiled)
    compiled = braze.compile(call, backend="aot_eager")
    for _ in range(3):
        Closing.ends.clear()
        x = torch.ones(2)
        assert compiled(x, [Closing(), 1]).tolist() == [3.0, 3.0]
        assert Closing.ends == [True] * 4, Closing.ends
    return double, torch.ones(2)


@program
def a_collection_ends_objects_meanwhile() -> Any:
    def backend(module: Any, inputs: Any) -> Any:
        ring: Any = [Closing()]
        ring.append(ring)
        del ring
        gc.collect()
        return module.forward

    Closing.compiled = braze.compile(double, backend="aot_eager")
    Closing.ends.clear()
    assert is_right(braze.compile(double, backend=backend))
    assert Closing.ends == [True] * 2
    return double, torch.ones(2)


@program
def callbacks_of_weak_references_compile() -> Any:
    class Node:
        pass

    def call(x: Any, holder: Any) -> Any:
        holder.pop()
        return x * 2

    ends: Any = []
    compiled = braze.compile(call, backend="aot_eager")
    for n in range(3):
        node = Node()
        reference = weakref.ref(node, lambda _: ends.append(is_right(braze.compile(double))))
        holder = [node]
        del node
        compiled(torch.ones(2), holder)
        assert reference() is None
        assert ends == [True] * (n + 1)
    return double, torch.ones(2)


@program
def a_handler_calls_compiled_code_meanwhile() -> Any:
    def ring(number: int, frame: Any) -> None:
        seen.append(is_right(compiled))
        seen.append(is_right(braze.compile(double, backend="aot_eager")))

    seen: Any = []
    compiled = braze.compile(double, backend=slow_backend)
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SLOW / 2)
    try:
        assert is_right(compiled)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert seen == [True, True]
    return double, torch.ones(2)


@program
def a_time_limit_ends_a_compile() -> Any:
    def ring(number: int, frame: Any) -> None:
        raise TimeoutError("rung")

    before = signal.signal(signal.SIGALRM, ring)
    compiled = braze.compile(double, backend=slow_backend)
    signal.setitimer(signal.ITIMER_REAL, SLOW / 2)
    try:
        compiled(torch.ones(2))
    except TimeoutError:
        rung = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        after = signal.signal(signal.SIGALRM, before)
    assert rung
    assert after is ring
    assert is_right(compiled)
    return double, torch.ones(2)


@program
def an_interrupt_ends_a_compile() -> Any:
    def interrupt(module: Any, inputs: Any) -> Any:
        if not seen:
            seen.append(True)
            signal.raise_signal(signal.SIGINT)
        return module.forward

    seen: Any = []
    compiled = braze.compile(double, backend=interrupt)
    try:
        compiled(torch.ones(2))
    except KeyboardInterrupt:
        seen.append("interrupted")
    assert seen == [True, "interrupted"]
    assert is_right(compiled)
    return double, torch.ones(2)


_NO_THREADS = """
import resource, threading, torch, braze
for limit in (resource.RLIMIT_NPROC,):
    resource.setrlimit(limit, (0, resource.getrlimit(limit)[1]))
def no(self): raise RuntimeError("can't start new thread")
threading.Thread.start = no
c = braze.compile(lambda x: (x * 2 + 1).sum() * x)
for _ in range(5):
    assert c(torch.ones(2)).tolist() == [6.0, 6.0]
print("right")
"""


@program
def no_further_thread_can_be_started() -> Any:
    done = subprocess.run(
        [sys.executable, "-c", _NO_THREADS], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "right\n", done.stderr[-2000:]
    return double, torch.ones(2)
