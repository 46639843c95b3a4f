"""Of random programs each call is counted, and none runs the program's own code uncounted."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

import braze
from braze.compile_records import CallableStatus
from braze.runtime.dispatch import compiled_function as driver
from tests.fuzz.generator import generate
from tests.fuzz.program import Program
from tests.fuzz.runner import SECONDS, time_limit
from tests.fuzz.world import run_world


class Counted:
    """Compiles a program's entry and counts its calls, and those of which CPython itself began the
    entry's own code: what is compiled is interpreted, and its code object never runs."""

    def __init__(self, program: Program) -> None:
        self.calls = self.begun = 0
        self.code: types.CodeType | None = None
        self.program = program
        self.compiled: Any = None

    def compile(self, entry: Any) -> Callable[..., Any]:
        function = getattr(entry, "__func__", entry)
        self.code = getattr(function, "__code__", None)
        self.compiled = braze.compile(entry, backend=self.program.backend)

        def run(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            outer = sys.getprofile()
            sys.setprofile(self.watch)
            try:
                return self.compiled(*args, **kwargs)
            finally:
                sys.setprofile(outer)

        return run

    def watch(self, frame: types.FrameType, event: str, value: Any) -> None:
        self.begun += event == "call" and frame.f_code is self.code


def run_counted(seed: int) -> tuple[Counted, CallableStatus]:
    braze.reset()
    counted = Counted(generate(seed))
    with time_limit(SECONDS):
        run_world(counted.program, counted.compile)
    (row,) = [row for row in braze.status() if row.calls]
    return counted, row


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_calls_are_those_made(first: int) -> None:
    for seed in range(first, first + 20):
        counted, row = run_counted(seed)
        assert row.calls == counted.calls > 0, seed
        assert counted.begun <= row.calls_left, f"seed {seed}: {row}"


def test_uncounted_calls_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def call(tally: Any, why: Any, function: Any, args: Any, kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def entry(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    monkeypatch.setattr(driver, "leave_to_eager", call)
    counted = Counted(generate(0))
    run = counted.compile(entry)
    run(torch.ones(3))
    assert not counted.begun
    with BaseTorchFunctionMode():
        run(torch.ones(3))
    assert counted.begun == 1 and not braze.status()[entry.__qualname__].calls_left
