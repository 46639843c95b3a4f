"""Programs that start something beside them, or wait for it: its effects are there in time."""

from __future__ import annotations

import _thread
import asyncio
import collections
import concurrent.futures
import contextvars
import multiprocessing
import os
import queue
import sched
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import torch

import braze
from tests.endings.run import program


@program
def starts_a_thread(x: Any) -> Any:
    out: Any = []
    thread = threading.Thread(target=lambda: out.append(x.cos()))
    thread.start()
    thread.join()
    return out[0] + 1, thread.is_alive()


@program
def starts_threads_in_a_loop(x: Any) -> Any:
    out: dict[int, Any] = {}
    threads = [threading.Thread(target=out.__setitem__, args=(i, x * i)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(out.values()), len(out)


class Worker(threading.Thread):
    def __init__(self, x: Any) -> None:
        super().__init__(daemon=True)
        self.x = x
        self.result: Any = None

    def run(self) -> None:
        self.result = self.x * 2 + 1


@program
def starts_a_class_of_its_own(x: Any) -> Any:
    worker = Worker(x)
    worker.start()
    worker.join(10)
    return worker.result - 1, worker.daemon


@program
def sees_what_was_written_before(x: Any) -> Any:
    state = {"n": 0}
    state["n"] = 41
    seen: Any = []

    def look() -> None:
        state["n"] += 1
        seen.append(state["n"])

    y = x * 2
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return y + state["n"], seen


@program
def waits_for_a_timer(x: Any) -> Any:
    done = threading.Event()
    timer = threading.Timer(0.05, done.set)
    timer.start()
    return x + done.wait(10)


@program
def waits_in_vain(x: Any) -> Any:
    return x + threading.Event().wait(0.05) + threading.Lock().acquire(timeout=0.05)


@program
def uses_locks(x: Any) -> Any:
    lock, many = threading.Lock(), threading.RLock()
    with lock:
        y = x * 2
    with many, many:
        y = y + 1
    return y, lock.locked(), lock.acquire(blocking=False), lock.acquire(blocking=False)


@program
def notifies_a_condition(x: Any) -> Any:
    condition, items = threading.Condition(), collections.deque()

    def produce() -> None:
        with condition:
            items.append(5)
            condition.notify_all()

    threading.Thread(target=produce).start()
    with condition:
        while not items:
            condition.wait(10)
    return x + items.popleft()


@program
def passes_a_barrier_and_a_semaphore(x: Any) -> Any:
    barrier, gate = threading.Barrier(2), threading.Semaphore(1)
    other = threading.Thread(target=barrier.wait)
    other.start()
    barrier.wait(10)
    other.join()
    with gate:
        y = x + 1
    return y, barrier.n_waiting, gate.acquire(blocking=False)


@program
def takes_from_a_queue(x: Any) -> Any:
    items: Any = queue.Queue(2)
    threading.Thread(target=lambda: [items.put(i) for i in range(5)]).start()
    return x * sum(items.get(timeout=10) for _ in range(5)), items.empty()


@program
def times_out_at_a_queue(x: Any) -> Any:
    try:
        queue.SimpleQueue().get(timeout=0.05)
    except queue.Empty:
        return x + 1
    return x


@program
def polls_a_queue(x: Any) -> Any:
    items: Any = queue.Queue()
    threading.Timer(0.1, items.put, (3,)).start()
    while True:
        try:
            return x + items.get_nowait()
        except queue.Empty:
            pass


@program
def submits_to_an_executor(x: Any) -> Any:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(lambda i: x * i, i) for i in range(3)]
        results = [future.result() for future in futures]
        more = list(pool.map(lambda i: x + i, range(2)))
    return sum(results), more


@program
def backward_in_a_thread() -> Any:
    weight = torch.ones(2, requires_grad=True)

    def call(x: Any) -> Any:
        loss = (x * weight).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        gradient = weight.grad
        weight.grad = None
        return gradient

    return call, torch.ones(2)


@program
def runs_an_event_loop(x: Any) -> Any:
    async def work(n: int) -> Any:
        await asyncio.sleep(0.01)
        return x * n

    async def both() -> Any:
        return await asyncio.gather(work(1), work(2))

    first = asyncio.run(both())
    loop = asyncio.new_event_loop()
    second = loop.run_until_complete(work(3))
    loop.close()
    return [t + 1 for t in first], second


@program
def awaits_in_vain(x: Any) -> Any:
    async def work() -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 0.05)

    try:
        asyncio.run(work())
    except TimeoutError:
        return x + 1
    return x


@program
def runs_a_schedule(x: Any) -> Any:
    seen: Any = []
    schedule = sched.scheduler(time.monotonic, time.sleep)
    start = time.monotonic()  # a compile between the two lines would reorder `enter`'s delays
    schedule.enterabs(start + 0.02, 1, seen.append, (2,))
    schedule.enterabs(start + 0.01, 1, seen.append, (1,))
    schedule.run()
    return x + len(seen), seen


@program
def runs_a_process(x: Any) -> Any:
    done = subprocess.run([sys.executable, "-c", "print(6)"], capture_output=True, text=True)
    return x * int(done.stdout), done.returncode


@program
def forks_a_process(x: Any) -> Any:
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    process = context.Process(target=results.put, args=(4,))
    process.start()
    process.join(20)
    return x * results.get(), process.exitcode


@program
def forks_by_hand(x: Any) -> Any:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, b"%d" % int(x.sum()))
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(read, 10)
    os.close(read)
    os.close(write)
    return x + int(text)


@program
def handles_a_signal(x: Any) -> Any:
    seen: Any = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)
    return x + len(seen)


@program
def is_interrupted_by_an_alarm(x: Any) -> Any:
    def ring(number: int, frame: Any) -> None:
        raise TimeoutError("rung")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        while True:
            pass
    except TimeoutError as error:
        return x + 1, str(error)
    finally:
        signal.signal(signal.SIGALRM, before)


@program
def talks_over_sockets(x: Any) -> Any:
    left, right = socket.socketpair()
    left.sendall(b"5")
    ready, _, _ = select.select([right], [], [], 10)
    text = right.recv(1)
    left.close()
    right.close()
    return x + int(text), len(ready)


@program
def waits_for_a_pipe_in_vain(x: Any) -> Any:
    read, write = os.pipe()
    ready, _, _ = select.select([read], [], [], 0.05)
    os.close(read)
    os.close(write)
    return x + len(ready)


SHARED = threading.local()
VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=1)


@program
def asks_which_thread_it_is() -> Any:
    def ask(x: Any) -> Any:
        name = threading.current_thread().name
        main = threading.get_ident() == threading.main_thread().ident
        return x + main, name, getattr(SHARED, "value", 0), VARIABLE.get()

    compiled = braze.compile(ask, backend="aot_eager")

    def in_another(function: Any, x: Any) -> Any:
        out: Any = []

        def call() -> None:
            SHARED.value = 7
            VARIABLE.set(8)
            out.append(function(x))

        thread = threading.Thread(target=call, name="another")
        thread.start()
        thread.join()
        return out

    def call(x: Any) -> Any:
        return [
            (ask(x), in_another(ask, x)),
            (compiled(x), in_another(compiled, x)),
            (in_another(compiled, x), compiled(x)),
        ]

    answers = call(torch.ones(2))
    assert repr(answers[0]) == repr(answers[1]) == repr(answers[2][::-1]), answers
    return ask, torch.ones(2)


@program
def starts_low_level_threads(x: Any) -> Any:
    lock = _thread.allocate_lock()
    lock.acquire()
    out: Any = []

    def work() -> None:
        out.append(x * 3)
        lock.release()

    _thread.start_new_thread(work, ())
    lock.acquire()
    return out[0]


@program
def sleeps(x: Any) -> Any:
    began = time.monotonic()
    time.sleep(0.05)
    return x + (time.monotonic() - began >= 0.05)


@program
def is_given_up_from_outside() -> Any:
    def call(x: Any) -> Any:
        try:
            with torch.no_grad():
                x = x * 2
                while True:
                    pass
        finally:
            ended.append(torch.is_grad_enabled())

    def limited(function: Any) -> Any:
        def ring(number: int, frame: Any) -> None:
            raise TimeoutError("rung")

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            return function(torch.ones(2))
        except TimeoutError as error:
            return str(error), torch.is_grad_enabled()
        finally:
            signal.signal(signal.SIGALRM, before)

    ended: Any = []
    assert limited(call) == ("rung", True)
    compiled = braze.compile(call, backend="aot_eager")
    assert [limited(compiled), limited(compiled)] == [("rung", True)] * 2
    return uses_locks, torch.ones(2)
