"""KeyboardInterrupt at many points of a compile: nothing is left half-changed.

A C function traces the interpreter and asks for a signal after a given number of lines; the
interrupt then comes out where the interpreter handles signals, as it does for Ctrl-C. So each
point is reproduced by its number.
"""

from __future__ import annotations

import copy
import gc
import importlib.machinery
import importlib.util
import logging
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import braze
from braze.compat.ambient import ambient_state
from braze.ir.kernel import SourceUnit
from braze.options import config
from braze.runtime.build import build
from braze.runtime.toolchain import Toolchain, find_toolchain


@pytest.fixture(scope="module")
def interrupts() -> Any:
    toolchain = find_toolchain(config.snapshot())
    include = sysconfig.get_paths()["include"]
    if not isinstance(toolchain, Toolchain) or not Path(include, "Python.h").exists():
        pytest.skip("no compiler, or no headers of Python")
    flags = ("-shared", "-fPIC", "-O1", "-x", "c++", f"-I{include}")
    text = Path(__file__).with_name("interrupts.cpp").read_text()
    tag = f"// {sysconfig.get_config_var('SOABI')}\n"
    plain = replace(toolchain, flags=flags, libraries=())
    path = build((SourceUnit("interrupts", tag + text),), plain, config.snapshot())
    loader = importlib.machinery.ExtensionFileLoader("interrupts", str(path))
    spec = importlib.util.spec_from_loader("interrupts", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def locks_of_logging() -> Iterator[None]:
    """Python's logging takes its locks before it enters `try`: an interrupt between the two leaves
    them taken, by no fault of ours, and later tests would wait for ever."""
    yield
    logging._lock = threading.RLock()  # type: ignore[attr-defined]
    for reference in logging._handlerList:  # type: ignore[attr-defined]
        handler = reference()
        if handler is not None:
            handler.createLock()


# --- programs ------------------------------------------------------------------------------------


class Counting(torch.nn.Module):
    """Writes to a buffer, a number, a list and an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.register_buffer("total", torch.zeros(4))
        self.calls = 0
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, log: dict[str, int]) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        with torch.no_grad():
            self.total += x.sum(0)
        log["calls"] = self.calls
        try:
            y = self.linear(x)
            if len(self.seen) > 1000:
                raise ValueError
        except ValueError:
            y = x
        return torch.relu(y) * sum(v for v in range(3))


class Modes(torch.nn.Module):
    """Switches what is the thread's own, and draws random numbers."""

    def forward(self, x: torch.Tensor, log: dict[str, int]) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            y = x @ x.t()
        with torch.inference_mode():
            z = torch.rand(4).exp()
        return y.float().sum() + torch.nn.functional.dropout(x, 0.5) + z.sum()


def forward(model: torch.nn.Module, x: torch.Tensor, log: dict[str, int]) -> Any:
    with torch.no_grad():
        return model(x, log)


def train(model: torch.nn.Module, x: torch.Tensor, log: dict[str, int]) -> Any:
    loss = model(x, log).square().sum()
    loss.backward()
    return loss.detach(), [parameter.grad.clone() for parameter in model.parameters()]


PROGRAMS: dict[str, tuple[type[torch.nn.Module], Callable[..., Any]]] = {
    "writes": (Counting, forward),
    "modes": (Modes, forward),
    "training": (Counting, train),
}


# --- what must not change ------------------------------------------------------------------------


def thread_state() -> tuple[Any, ...]:
    return (
        ambient_state(),
        len(_get_current_dispatch_mode_stack()),
        len(_get_current_function_mode_stack()),
        sys.getprofile(),
        gc.isenabled(),
        torch.compiler.is_compiling(),
        torch._C._autograd._top_saved_tensors_default_hooks(False),
        torch._C._functorch.get_dynamic_layer_stack_depth(),
    )


def programs_state(model: torch.nn.Module, log: dict[str, int]) -> list[Any]:
    plain = {k: copy.copy(v) for k, v in vars(model).items() if isinstance(v, (int, list))}
    tensors = [t.clone() for t in (*model.parameters(), *model.buffers())]
    names = dict.fromkeys(sorted(vars(model)), 0)
    return [plain, dict(log), names, torch.get_rng_state(), *tensors]


class EndOfCompile(logging.Handler):
    """Notes how many lines had run when the first compile ended; 0: none has."""

    def __init__(self, interrupts: Any) -> None:
        super().__init__()
        self.interrupts, self.line = interrupts, 0

    def emit(self, record: logging.LogRecord) -> None:
        self.line = self.line or self.interrupts.count()


def run_interrupted(interrupts: Any, run: Callable[[], Any], at: int) -> BaseException | None:
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupts.start(at)
        run()
    except BaseException as exception:
        return exception
    finally:
        interrupts.stop()
        signal.signal(signal.SIGINT, handler)
    return None


def check_point(interrupts: Any, program: str, at: int, end: int) -> bool:
    """A call that is interrupted, and two more that must be right; whether it was.

    end: the line at which the compile ends; later interrupts are those of the program itself.
    """
    make, run = PROGRAMS[program]
    torch.manual_seed(0)
    model, log, x = make(), dict[str, int](), torch.randn(3, 4)
    reference = copy.deepcopy(model)
    compiled = braze.compile(model)
    before, threads = programs_state(model, log), thread_state()
    raised = run_interrupted(interrupts, lambda: run(compiled, x, log), at)
    assert raised is None or type(raised) is KeyboardInterrupt
    assert thread_state() == threads
    if at >= end:
        return raised is not None
    torch.testing.assert_close(programs_state(model, log), before, rtol=0, atol=0)
    expected_log: dict[str, int] = {}
    for _ in range(2):
        torch.manual_seed(1)
        actual = run(compiled, x, log)
        torch.manual_seed(1)
        expected = run(reference, x, expected_log)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(
            programs_state(model, log), programs_state(reference, expected_log)
        )
    return raised is not None


def check_program(interrupts: Any, program: str, points: int, offset: int = 0) -> None:
    end = EndOfCompile(interrupts)
    logger = logging.getLogger("braze.compile_times")
    logger.addHandler(end)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        for _ in range(2):  # the first loads what later ones find loaded
            end.line = 0
            check_point(interrupts, program, sys.maxsize, 0)
        last, ended = interrupts.count(), end.line
        assert ended > 1000
        interrupted = [
            check_point(interrupts, program, 1 + (number * last + offset) // points, ended)
            for number in range(points)
        ]
        assert sum(interrupted) > points // 2
    finally:
        logger.setLevel(level)
        logger.removeHandler(end)


# Before the others: an interrupt may also leave a lock of `logging` held, as it may in any program.
def test_the_lock_of_an_interrupted_compile_is_free(interrupts: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    interrupted = 0
    for at in range(300, 3000, 600):
        compiled = braze.compile(function)
        # One that falls into a `__del__` or a weak reference's callback is lost, as in any program.
        raised = run_interrupted(interrupts, lambda: compiled(torch.ones(2)), at)  # noqa: B023
        interrupted += isinstance(raised, KeyboardInterrupt)
        results: list[torch.Tensor] = []
        thread = threading.Thread(
            target=lambda: results.append(compiled(torch.ones(2))),  # noqa: B023
            daemon=True,
        )
        thread.start()
        thread.join(60)
        assert results and torch.equal(results[0], torch.full((2,), 2.0))
    assert interrupted


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_compile_interrupted_anywhere_leaves_nothing(interrupts: Any, program: str) -> None:
    check_program(interrupts, program, 12)


def test_an_interrupt_where_hooks_on_saved_tensors_begin_and_end(
    interrupts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left on the thread, they turn off autograd's look at what was saved and then written to."""
    borders: list[int] = []
    hooks = torch.autograd.graph.saved_tensors_hooks
    for name in ("__enter__", "__exit__"):
        method = getattr(hooks, name)

        def noted(*arguments: Any, method: Any = method) -> Any:
            borders.append(interrupts.count())
            return method(*arguments)

        monkeypatch.setattr(hooks, name, noted)
    check_point(interrupts, "training", sys.maxsize, 0)
    borders.clear()
    check_point(interrupts, "training", sys.maxsize, 0)
    assert len(borders) == 2  # of the one compile: the two calls behind it find it made
    points = [border + step for border in borders for step in range(-8, 16)]
    interrupted = [check_point(interrupts, "training", at, sys.maxsize) for at in points]
    assert all(interrupted)


@pytest.mark.slow
@pytest.mark.parametrize("offset", range(3))
@pytest.mark.parametrize("program", PROGRAMS)
def test_at_many_points(interrupts: Any, program: str, offset: int) -> None:
    check_program(interrupts, program, 90, 1 + 997 * offset)
