"""Runs the test methods of some of CPython's test modules, plainly and then compiled.

Each run has a process of its own, forked from one that has imported everything: whatever a method
does to the interpreter, crash included, ends with it. Compiled, a method runs between two tensor
operations of one compiled function, so that its frames are captured around them.

    python -m tests.cpython.worker test_list test_dict [--only append] [--part 2/8]
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import importlib
import importlib.util
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import types
import unittest
import warnings
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, final

import torch
from test import support

from braze import targets
from braze.interop.backends import OWN
from braze.options import config, resolve
from braze.trace import Journal

# Of processor time, so that a busy machine changes nothing; and of waiting for something else.
PLAIN_SECONDS = 1
COMPILED_SECONDS = 5
IDLE_SECONDS = 120.0
TICK = 0.25
_OPTIONS = {"suppress_errors": False}


@final
@dataclass(slots=True)
class MethodReport:
    """One test method.

    plain: "pass", or why it does not count. outcome: "pass", or how the compiled run failed.
    graphs: with at least one operator; whole: one graph holds both operations, without a break.
    breaks: (code, reason, origin) of each, in the order met; a refusal is one too.
    raised: exceptions for which frames were left to eager.
    """

    id: str
    plain: str = ""
    outcome: str = ""
    detail: str = ""
    whole: bool = False
    graphs: int = 0
    bytecodes: int = 0
    breaks: list[tuple[str, str, str]] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def module(self) -> str:
        """The test module."""
        return self.id.partition(".")[0]


def around(x: torch.Tensor, method: Callable[[], Any]) -> torch.Tensor:
    """What is compiled: a method between two tensor operations."""
    y = x + 1
    method()
    return y * 2


# --- one method, in this process ------------------------------------------------------------------


def run_plainly(case: unittest.TestCase) -> str:
    """ "pass", or what came of it."""
    return _run(case)[0]


def run_compiled(case: unittest.TestCase) -> dict[str, Any]:
    """The fields of a MethodReport that the compiled run tells."""
    journal = Journal()
    options = resolve(config.snapshot(), mode=None, fullgraph=False, dynamic=None, options=_OPTIONS)
    compiled = targets.compile_function(around, options, OWN["aot_eager"], journal)
    results: list[Any] = []

    def call(method: Callable[[], Any]) -> None:
        results.append(compiled(torch.ones(2), method))

    case._callTestMethod = call  # type: ignore[attr-defined]
    outcome, detail = _run(case)
    if outcome == "pass" and not (len(results) == 1 and results[0].tolist() == [4.0, 4.0]):
        outcome, detail = "fail", f"the tensors came out as {results}"
    records = journal.records()
    graphs = [r for r in records if r.outcome == "graph" and r.ops]
    whole = len(records) == 1 and bool(graphs) and records[0].graph_break is None
    breaks = [r.graph_break for r in records if r.graph_break is not None]
    raised = [r.raised for r in records if r.raised]
    return {
        "outcome": outcome,
        "detail": detail,
        "whole": whole and outcome == "pass",
        "graphs": len(graphs),
        "bytecodes": sum(r.counters.get("bytecodes", 0) for r in records),
        "breaks": [(b.code, b.reason, b.origin) for b in breaks],
        "raised": raised,
    }


def _run(case: unittest.TestCase) -> tuple[str, str]:
    """Run a case with its class's and module's fixtures."""
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        unittest.TestSuite([case]).run(result)
    problems = [text for _, text in (*result.errors, *result.failures)]
    if problems:
        return _last_line(problems[0]), problems[0][-3000:]
    if result.skipped:
        return f"skipped: {result.skipped[0][1]}", ""
    if result.expectedFailures or result.unexpectedSuccesses:
        return "expected failure", ""
    return "pass", ""


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line and not line.startswith(" ")]
    return lines[-1][:200] if lines else "no message"


# --- one method, in a process of its own ----------------------------------------------------------


def forked(work: Callable[[], Any], limit: int) -> Any:
    """What `work` gives in a forked process, or a text that says how the process ended."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        random.seed(0)
        _be_child(work, writing)
    os.close(writing)
    try:
        answer = _read(reading, IDLE_SECONDS)
    finally:
        os.close(reading)
    if answer is None:
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL)
    if answer is None or killed:
        return "timeout"
    return json.loads(answer) if answer else f"crash: status {status}"


def _be_child(work: Callable[[], Any], writing: int) -> None:
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2) if not os.environ.get("BRAZE_CPYTHON_SHOW") else ():
        os.dup2(silent, stream)
    try:
        answer = json.dumps(work())
    except BaseException:
        answer = json.dumps(f"error: {_last_line(traceback.format_exc())}")
    data = answer.encode()
    while data:
        data = data[os.write(writing, data) :]
    os._exit(0)


def _read(reading: int, limit: float) -> str | None:
    """All that is written to a pipe; None when that takes longer than the limit. Time counts in
    ticks of this process: while the whole run is stopped it does not pass."""
    chunks: list[bytes] = []
    left = limit
    while True:
        if not select.select([reading], [], [], TICK)[0]:
            left -= TICK
            if left <= 0:
                return None
            continue
        chunk = os.read(reading, 1 << 16)
        if not chunk:
            return b"".join(chunks).decode()
        chunks.append(chunk)


def report_on(case: unittest.TestCase) -> MethodReport:
    """Run a method both ways."""
    began = time.perf_counter()
    report = MethodReport(short_id(case))
    report.plain = forked(lambda: run_plainly(case), PLAIN_SECONDS)
    if report.plain == "pass":
        answer = forked(lambda: run_compiled(case), COMPILED_SECONDS)
        if isinstance(answer, str):
            answer = {"outcome": answer}
        for name, value in answer.items():
            setattr(report, name, value)
    report.seconds = time.perf_counter() - began
    return report


# --- a module -------------------------------------------------------------------------------------


def module_exists(name: str) -> bool:
    """Whether the running Python has a test module: not every installation holds them."""
    try:
        return importlib.util.find_spec(f"test.{name}") is not None
    except ModuleNotFoundError:
        return False


def short_id(case: unittest.TestCase) -> str:
    """`test_list.ListTest.test_append`."""
    return case.id().removeprefix("test.")


def cases_of(module: types.ModuleType) -> list[unittest.TestCase]:
    """Every method of a test module, doctests and coroutines left out."""
    found = _flat(unittest.defaultTestLoader.loadTestsFromModule(module))
    return sorted((case for case in found if _counts(case)), key=short_id)


def _counts(case: unittest.TestCase) -> bool:
    is_async = isinstance(case, unittest.IsolatedAsyncioTestCase)
    return type(case).__module__.startswith("test.") and not is_async


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _flat(item)
        else:
            yield item


def is_in_part(name: str, part: int, parts: int) -> bool:
    """Whether a method is in a part; each is in the same one in every release of Python."""
    return zlib.crc32(name.encode()) % parts == part


def main(arguments: list[str]) -> None:
    """Reports of the methods of modules, one line of JSON each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--only", default="", help="methods whose name contains this")
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n parts")
    given = parser.parse_args(arguments)
    support.use_resources = []
    support.verbose = False
    part, parts = map(int, given.part.split("/"))
    import_shared()
    run_plainly_compiled_once()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in given.modules:
            cases = cases_of(importlib.import_module(f"test.{name}"))
            gc.collect()
            gc.freeze()
            for case in cases:
                method = short_id(case)
                if given.only in method and is_in_part(method, part, parts):
                    print(json.dumps(dataclasses.asdict(report_on(case))), flush=True)
        os.chdir("/")


def import_shared() -> None:
    """What some test modules import, and methods of others: it is there in each run, whichever
    modules run together."""
    for name in ("_testcapi", "_testinternalcapi", "xxsubtype", "test.test_iter"):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def run_plainly_compiled_once() -> None:
    """What the first compile of a process imports and sets up, once for all forks."""
    case = unittest.FunctionTestCase(lambda: None)
    found = run_compiled(case)
    if not found["whole"]:
        raise RuntimeError(f"not even an empty test runs: {found}")


if __name__ == "__main__":
    main(sys.argv[1:])
