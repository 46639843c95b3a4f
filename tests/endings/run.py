"""Runs programs that must end, each under a deadline: `python -m tests.endings.run MODULE`.

A program is a function of a tensor, or one without arguments that gives a function and what it is
called with. It is called in eager and, compiled, three times: each call ends, and as in eager. What
does not end within the deadline ends the process, with the stacks of all threads.
"""

from __future__ import annotations

import copy
import faulthandler
import importlib
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

import braze
from braze.trace import JOURNAL

DEADLINE = 60  # seconds for the calls of a program, which take one or two
_PROGRAMS: dict[str, Callable[..., Any]] = {}
_LEFT_TO_EAGER: set[str] = set()


def program(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a program of the module that is run."""
    _PROGRAMS[function.__name__] = function
    return function


def left_to_eager(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a program of which nothing can be compiled: its values are nested too deeply."""
    _LEFT_TO_EAGER.add(function.__name__)
    return program(function)


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives or raises, in a form that can be compared."""
    try:
        return _comparable(call())
    except Exception as error:
        return type(error).__name__, str(error)


def _comparable(value: Any) -> Any:
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return "tensor", value.dtype, value.tolist()
    if isinstance(value, (list, tuple, set)):
        items = map(_comparable, value)
        return type(value).__name__, sorted(items, key=repr) if isinstance(value, set) else [*items]
    if isinstance(value, dict):
        return type(value).__name__, [(_comparable(k), _comparable(v)) for k, v in value.items()]
    if isinstance(value, (int, float, str, bytes, type(None))):
        return value
    items = [*value][:100] if isinstance(value, Iterable) else []
    return type(value).__name__, [*map(_comparable, items)]


def differences(function: Callable[..., Any]) -> list[str]:
    """Calls of a program that do not end as in eager."""
    is_maker = function.__code__.co_argcount == 0
    target, *_ = function() if is_maker else (function, None)
    compiled = braze.compile(target, backend="aot_eager")

    def given() -> Any:
        if not is_maker:
            return (torch.ones(2),)
        return function()[1:]

    with torch.random.fork_rng():
        expected = outcome(lambda: target(*given()))
    found = []
    for call in range(3):
        with torch.random.fork_rng():
            actual = outcome(lambda: compiled(*given()))
        if actual != expected:
            found.append(f"call {call}: {actual!r:.300} instead of {expected!r:.300}")
    return found


def main(module: str) -> int:
    """Run every program of a module; how many of them differ."""
    warnings.simplefilter("ignore")
    importlib.import_module(module)
    failed = 0
    for name, function in copy.copy(_PROGRAMS).items():
        faulthandler.dump_traceback_later(DEADLINE, exit=True)
        began, before = time.monotonic(), len(JOURNAL.records())
        print(name, end=" ", flush=True)
        problems = differences(function)
        records = JOURNAL.records()[before:]
        compiled = any(record.outcome == "graph" for record in records)
        if compiled is (name in _LEFT_TO_EAGER):
            problems.append(f"compiled: {compiled}")
        faulthandler.cancel_dump_traceback_later()
        print(f"{time.monotonic() - began:.1f} s", *problems or ["ends"], sep="\n   ", flush=True)
        failed += bool(problems)
        braze.reset()
    return failed


if __name__ == "__main__":
    from tests.endings import run  # the module that programs register with, not __main__

    sys.exit(run.main(sys.argv[1]))
