"""Eager and compiled side by side, each in a process of its own: the first difference."""

from __future__ import annotations

import gc
import math
import os
import pickle
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, final

import torch

import braze
from tests.fuzz.reference.play import Played, play
from tests.fuzz.reference.program import IMPORTS, Program
from tests.fuzz.reference.snapshot import TensorState

SECONDS = 6.0
_IMPORTED_LATE = """
import asyncio, cProfile, concurrent.futures, contextvars, getpass, hmac, logging, sympy
import torch.distributed, torch.func, torch.library, torch.optim
import torch.autograd.forward_ad, torch.nn.attention, torch.nn.utils.parametrizations
import torch.utils._python_dispatch, torch.utils.checkpoint
"""
_COUNT_OF_A_CACHE = re.compile(r"\.info\[[01]\]$")
_NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")


@final
@dataclass(frozen=True, slots=True)
class Found:
    """A difference. kind: "value", "error", "fault", "crash", "hang", "silent" or "warning".
    cause: the same for like differences. step: which one, or -1."""

    kind: str
    cause: str
    text: str
    step: int = -1

    @property
    def key(self) -> tuple[str, str]:
        """What a smaller program must share to fail in the same way."""
        return self.kind, self.cause


@final
@dataclass(slots=True)
class Outcome:
    """What came of a program. is_void: eager itself failed to run it, or is not deterministic.
    graphs: operators of each graph that was compiled."""

    found: Found | None = None
    is_void: bool = False
    graphs: list[int] = field(default_factory=list)
    errors: int = 0
    why: str = ""


def warm_up() -> None:
    """Imports, in the process that the others are forked from, what is imported late."""
    torch.set_num_threads(1)
    exec(f"{IMPORTS}{_IMPORTED_LATE}", {})
    for backend, dynamic in (("eager", None), ("aot_eager", None), ("aot_eager", True)):
        compiled = braze.compile(_various, backend=backend, dynamic=dynamic)
        for size in (2, 3, 3, 2):
            compiled(torch.ones(size, 2, requires_grad=True), torch.nn.Linear(2, 2))
    braze.reset()
    gc.collect()
    gc.freeze()  # a collection in a child would copy all pages


def _various(x: torch.Tensor, layer: torch.nn.Module) -> list[Any]:
    """What makes the compiler read most of its own modules."""
    y = layer(x).sin() + 1
    torch._C._log_api_usage_once("warm")  # a break
    with torch.no_grad():
        z = torch.where(y > 0, y, -y).sum(0)
    return [y @ y.t(), z, len("a"), {"k": list(range(3))}]


def check(program: Program) -> Outcome:
    """Play a program both ways."""
    eager = forked(lambda: play(program, False), SECONDS / 2)
    if eager == "hang":  # the machine may be busy
        eager = forked(lambda: play(program, False), 4 * SECONDS)
    if not isinstance(eager, Played) or eager.broken:
        return Outcome(is_void=True, why=eager if isinstance(eager, str) else eager.broken)
    errors = sum(bool(step.error) for step in eager.steps)
    compiled = forked(lambda: play(program, True), SECONDS)
    if compiled == "hang":  # the machine may be busy
        compiled = forked(lambda: play(program, True), 10 * SECONDS)
    if not isinstance(compiled, Played):
        kind = "hang" if compiled == "hang" else "crash"
        return Outcome(Found(kind, compiled[-160:], compiled), errors=errors)
    asks = "is_compiling" in program.text
    found = difference(eager, compiled) or _silence(eager, compiled, asks)
    outcome = Outcome(found, graphs=compiled.graphs, errors=errors)
    outcome.why = next((step.error for step in eager.steps if step.error), "")
    if found is not None:
        again = forked(lambda: play(program, False), SECONDS)
        if not isinstance(again, Played) or difference(eager, again) is not None:
            return Outcome(is_void=True, why="not deterministic")
    return outcome


def forked(work: Callable[[], Any], seconds: float) -> Any:
    """The result of a function in a child process; "hang", or how the child ended."""
    reading, writing = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.close(reading)
        _work(work, writing)
    os.close(writing)
    data, end = b"", time.monotonic() + seconds
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        while True:
            left = end - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "hang"
            part = pipe.read(1 << 16)
            if not part:
                break
            data += part
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not data:
        return f"the process ended with {status}"
    return pickle.loads(data)


def _work(work: Callable[[], Any], writing: int) -> None:
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            given = work()
        except BaseException as error:
            given = "".join(traceback.format_exception(error))[-1500:]
        data = pickle.dumps(given)
        while data:
            data = data[os.write(writing, data) :]
    finally:
        os._exit(0)


def difference(eager: Played, compiled: Played) -> Found | None:
    """The first difference of two runs."""
    if eager.broken != compiled.broken:
        return Found("error", "compile", f"{eager.broken!r} and {compiled.broken!r}")
    has_raised = False
    for number, (left, right) in enumerate(zip(eager.steps, compiled.steps)):
        has_raised = has_raised or bool(left.error)
        if left.error != right.error and not _texts_match(left.error, right.error):
            return _of_errors(left.error, right.error, number, left.text)
        parted = _first(left.state, right.state, has_raised)
        if parted is not None:
            cause, text = parted
            return Found("value", cause, f"{left.text}: {text}", number)
    if eager.warned != compiled.warned:
        text = f"eager {eager.warned - compiled.warned}, compiled {compiled.warned - eager.warned}"
        return Found("warning", "warnings", text)
    return None


def _silence(eager: Played, compiled: Played, asks: bool) -> Found | None:
    """Whether the compiler failed, or nothing was compiled and nothing was said of it. asks: the
    program asks whether it is compiled, and so may raise only then."""
    for text in compiled.said:
        if "does not hold" in text or "bug in Braze" in text:
            return Found("fault", "said", text)
        is_only_compiled = not any(step.error for step in eager.steps)
        if is_only_compiled and not asks and "the program raises" in text and not compiled.graphs:
            return Found("silent", "raises only where it is compiled", text)
    if compiled.graphs or compiled.said or all(step.error for step in eager.steps):
        return None
    return Found("silent", "nothing", "no graph, no break, no word")


def _of_errors(left: str, right: str, number: int, text: str) -> Found:
    kinds = left.partition(":")[0] or "nothing", right.partition(":")[0] or "nothing"
    kind = "fault" if "bug in Braze" in right else "error"
    cause = f"{kinds[0]} and {kinds[1]}" if kinds[0] != kinds[1] else f"message of {kinds[0]}"
    return Found(
        kind, cause, f"{text}: eager raised {left[:300]!r}, compiled {right[:900]!r}", number
    )


def _first(left: list[Any], right: list[Any], has_raised: bool) -> tuple[str, str] | None:
    """The cause and the words of the first difference. has_raised: so the call has run twice as far
    as it came, which caches count."""
    for (path, expected), (other_path, actual) in zip(left, right):
        if path != other_path:
            return "structure", f"{path} ({expected}) is at the place of {other_path} ({actual})"
        is_count = has_raised and _COUNT_OF_A_CACHE.search(path) is not None
        if expected != actual and not is_count and not _matches(expected, actual):
            return _cause(path, expected, actual), f"{path}: eager {expected}, compiled {actual}"
    if len(left) != len(right):
        longer, name = (left, "eager") if len(left) > len(right) else (right, "compiled")
        return "structure", f"only {name} has {longer[min(len(left), len(right))]}"
    return None


def _cause(path: str, expected: Any, actual: Any) -> str:
    root = re.split(r"[.\[]", path)[0]
    root = root if root in ("result", "printed") else "state"
    if isinstance(expected, TensorState) and isinstance(actual, TensorState):
        for name in expected.facts:
            if expected.facts[name] != actual.facts.get(name):
                return f"{root} tensor {name}"
        return f"{root} tensor data"
    return f"{root} value"


def _matches(a: Any, b: Any) -> bool:
    """Whether two entries are equal but for the rounding of floats."""
    if isinstance(a, TensorState) and isinstance(b, TensorState):
        return a.facts == b.facts and _near(a.data, b.data, _tolerance(a))
    if isinstance(a, tuple) and isinstance(b, tuple) and a[0] == b[0]:
        if a[0] == "float":
            return _near(a[1], b[1], 1e-5)
        if isinstance(a[1], str) and isinstance(b[1], str):
            return _texts_match(a[1], b[1])
    if isinstance(a, str) and isinstance(b, str):
        return _texts_match(a, b)
    return False


def _tolerance(state: TensorState) -> float:
    return 2e-2 if "16" in state.facts["dtype"] else 1e-5


def _near(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, list):
        if not isinstance(b, list) or len(a) != len(b):
            return False
        return all(_near(one, other, tolerance) for one, other in zip(a, b))
    if isinstance(a, complex):
        return abs(a - b) <= tolerance * max(1.0, abs(a))
    if not isinstance(a, float) or not isinstance(b, float):
        return bool(a == b)
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or abs(a - b) <= tolerance * max(1.0, abs(a))


def _texts_match(a: str, b: str) -> bool:
    if a == b:
        return True
    if _NUMBER.sub("#", a) != _NUMBER.sub("#", b):
        return False
    pairs = zip(_NUMBER.findall(a), _NUMBER.findall(b))
    return all(_near(float(one), float(other), 1e-4) for one, other in pairs)
