"""Every function of what runs beside a program, called in compiled code: it ends as in eager.

The functions are those that `dir` finds in the modules; each is called with a few simple argument
lists. What does not end in eager, or ends the process, is left out by name.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextvars
import faulthandler
import multiprocessing
import queue
import sched
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import braze
from tests.endings.run import outcome

MODULES = (
    (_thread, threading, queue, concurrent.futures, asyncio, multiprocessing, signal, subprocess)
    + (socket, select, selectors, time, sched, contextvars)
)  # fmt: skip
# Ends the process or the thread, waits for what never comes, or asks the network.
_LEFT_OUT = frozenset(
    "exit exit_thread interrupt_main pause sigwait sigwaitinfo alarm pthread_kill setitimer "
    "freeze_support excepthook main breakpoint gethostbyaddr gethostbyname gethostbyname_ex "
    "getaddrinfo getnameinfo getfqdn create_connection sethostname Manager "
    "set_start_method get_logger log_to_stderr close run_coroutine_threadsafe "
    "clock_settime clock_settime_ns settrace setprofile settrace_all_threads "
    "setprofile_all_threads set_forkserver_preload fork_exec stack_size start_server "
    "SimpleQueue Queue JoinableQueue Pool Process".split()
)
ARGUMENTS: tuple[tuple[Any, ...], ...] = ((), (0,), (0.001,), ("x",), (len,), ([], [], [], 0))


def functions() -> Iterator[tuple[str, Any]]:
    """The name of each function and class, and itself."""
    for module in MODULES:
        for name in dir(module):
            value = getattr(module, name)
            if name[0] != "_" and callable(value) and name not in _LEFT_OUT:
                yield f"{module.__name__}.{name}", value


def call(x: Any, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    y = x * 2
    result = function(*args)
    close = getattr(result, "close", None)
    if callable(close) and not isinstance(result, type):
        close()
    return type(result).__qualname__, y + 1


def differences_of(function: Any, args: tuple[Any, ...]) -> list[str]:
    """Calls that do not end as in eager."""
    x = torch.ones(2)
    expected = outcome(lambda: call(x, function, args))
    compiled = braze.compile(call, backend="aot_eager")
    actual = [outcome(lambda: compiled(x, function, args)) for _ in range(2)]
    return [f"{each!r:.200} instead of {expected!r:.200}" for each in actual if each != expected]


def main() -> int:
    """Call everything; how many calls differ."""
    warnings.simplefilter("ignore")
    failed = count = 0
    for name, function in functions():
        for args in ARGUMENTS:
            faulthandler.dump_traceback_later(20, exit=True)
            handlers = {n: signal.getsignal(n) for n in signal.valid_signals()}
            problems = differences_of(function, args)
            for number, handler in handlers.items():
                if signal.getsignal(number) is not handler and handler is not None:
                    signal.signal(number, handler)
            faulthandler.cancel_dump_traceback_later()
            count += 1
            if problems:
                failed += 1
                print(name, args, *problems, sep="\n   ", flush=True)
        braze.reset()
    print(count, "calls", failed, "differ")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 100))
