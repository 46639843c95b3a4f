"""KeyboardInterrupt at many points of a compile: nothing is left half-changed.

A C function traces the interpreter and asks for a signal after a given number of lines; the
interrupt then comes out where the interpreter handles signals, as it does for Ctrl-C. So each
point is reproduced by its number.
"""

from __future__ import annotations

import copy
import gc
import logging
import signal
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import braze
from braze.compat.torch import autograd_engine as backward
from braze.compat.torch.ambient_state import ambient_state
from braze.compat.torch.autograd_engine import saved_hooks
from braze.compat.torch.functorch import transform_levels
from braze.compat.torch.thread_state import run_isolated
from braze.ir.kernels.kernel import SourceUnit
from braze.options import config
from braze.runtime.launch.build_cache import extension_of
from braze.runtime.launch.cpp_compiler import Toolchain, find_toolchain
from braze.runtime.resume import frame_driver as open_frames
from tests.shares import due_today


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
    return extension_of(
        "interrupts", SourceUnit("interrupts", tag + text), plain, config.snapshot()
    )


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


class Transforms(torch.nn.Module):
    """Levels of torch.func's transforms."""

    def forward(self, x: torch.Tensor, log: dict[str, int]) -> torch.Tensor:
        y = torch.vmap(lambda row: row.sin() * 2)(x)
        z = torch.func.grad(lambda row: row.exp().sum())(x)
        return y + z + torch.func.jvp(torch.cos, (x,), (y,))[1]


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
    "transforms": (Transforms, forward),
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
        saved_hooks(),
        transform_levels(),
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


class Lost(KeyboardInterrupt):
    """An interrupt that came where Python cannot raise: in a `__del__`, in a weak reference's
    callback. Python prints it and goes on, in any program."""


def run_interrupted(interrupts: Any, run: Callable[[], Any], at: int) -> BaseException | None:
    """What a call raised that was interrupted; `Lost` where Python dropped the interrupt."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    lost: list[type[BaseException]] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda fault: lost.append(fault.exc_type)
    try:
        interrupts.start(at)
        run()
    except BaseException as exception:
        return exception
    finally:
        interrupts.stop()
        sys.unraisablehook = hook
        signal.signal(signal.SIGINT, handler)
    assert all(kind is KeyboardInterrupt for kind in lost), lost
    return Lost() if lost else None


def is_in_the_programs_own(raised: BaseException | None) -> bool:
    """Whether an interrupt came out of `__enter__` or `__exit__` of a manager: behind the call that
    switches a mode and before its end. `with` undoes nothing there, in eager as compiled."""
    here = str(Path(braze.__file__).parent)
    frames = [] if raised is None else traceback.extract_tb(raised.__traceback__)
    names = {frame.name for frame in frames if not frame.filename.startswith(here)}
    is_ours = not frames or frames[-1].filename.startswith(here)
    return not is_ours and not names.isdisjoint(("__enter__", "__exit__"))


def assert_kept(threads: tuple[Any, ...], raised: BaseException | None) -> None:
    """The thread's state is what it was, or an interrupt fell into the gap that Python leaves; then
    the mode is put back here."""
    if thread_state() != threads and is_in_the_programs_own(raised):
        assert raised is not None
        traceback.clear_frames(raised.__traceback__)
        raised.__traceback__ = None  # it holds the manager, which leaves inference mode as it goes
        gc.collect()
        torch.set_grad_enabled(threads[0].grad)
    assert thread_state() == threads


def check_point(interrupts: Any, program: str, at: int, end: int) -> bool:
    """A call that is interrupted, and two more that must be right; whether it was, and raised so.

    end: the line at which the compile ends; later interrupts are those of the program itself.
    """
    make, run = PROGRAMS[program]
    torch.manual_seed(0)
    model, log, x = make(), dict[str, int](), torch.randn(3, 4)
    reference = copy.deepcopy(model)
    compiled = braze.compile(model)
    before, threads = programs_state(model, log), thread_state()
    raised = run_interrupted(interrupts, lambda: run(compiled, x, log), at)
    assert raised is None or type(raised) in (KeyboardInterrupt, Lost)
    assert_kept(threads, raised)
    if at >= end or isinstance(raised, Lost):
        return type(raised) is KeyboardInterrupt
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


def lines_of_hooks(
    interrupts: Any, run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """The lines at which a compile puts hooks on saved tensors in force, and takes them away."""
    lines: list[int] = []
    real = backward.silence_saved_hooks

    def noted(silent: bool) -> bool:
        lines.append(interrupts.count())
        return real(silent)

    monkeypatch.setattr(backward, "silence_saved_hooks", noted)
    for _ in range(2):  # the first loads what later ones find loaded
        lines.clear()
        run_interrupted(interrupts, run, sys.maxsize)
    return list(lines)


# Before the others: an interrupt may also leave a lock of `logging` held, as it may in any program.
def test_the_lock_of_an_interrupted_compile_is_free(interrupts: Any) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    interrupted = 0
    for at in range(300, 3000, 600):
        compiled = braze.compile(function)
        raised = run_interrupted(interrupts, lambda: compiled(torch.ones(2)), at)  # noqa: B023
        interrupted += type(raised) is KeyboardInterrupt
        results: list[torch.Tensor] = []
        thread = threading.Thread(
            target=lambda: results.append(compiled(torch.ones(2))),  # noqa: B023
            daemon=True,
        )
        thread.start()
        thread.join(60)
        assert results and torch.equal(results[0], torch.full((2,), 2.0))
    assert interrupted


def test_an_interrupt_that_python_drops_is_told_apart(interrupts: Any) -> None:
    class Dying:
        def __del__(self) -> None:
            for _ in range(3):
                pass

    kinds = [type(run_interrupted(interrupts, Dying, at)) for at in (2, 3, 4)]
    assert kinds == [Lost] * 3


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_compile_interrupted_anywhere_leaves_nothing(interrupts: Any, program: str) -> None:
    check_program(interrupts, program, 12)


def test_an_interrupt_between_open_frames_ends_their_with(
    interrupts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two pieces of a frame that a break left open the driver's own code runs, while a
    `with` of the frame is open: an interrupt there has to come out of the frame."""

    lines: list[int] = []
    enter = open_frames._enter

    def noted(host: Any, frames: Any) -> Any:
        lines.append(interrupts.count())
        return enter(host, frames)

    make, run = PROGRAMS["modes"]
    model, x = make(), torch.randn(3, 4)
    with monkeypatch.context() as patch:
        patch.setattr(open_frames, "_enter", noted)
        for _ in range(3):  # the first loads what later ones find loaded
            compiled = braze.compile(model)
            lines.clear()
            run_interrupted(interrupts, lambda: run(compiled, x, {}), sys.maxsize)  # noqa: B023
    threads, interrupted = thread_state(), 0
    for at in range(lines[0], lines[0] + 60, 3):
        compiled = braze.compile(model)
        raised = run_interrupted(interrupts, lambda: run(compiled, x, {}), at)  # noqa: B023
        interrupted += type(raised) is KeyboardInterrupt
        assert_kept(threads, raised)
    assert interrupted > 15


@pytest.mark.slow
@pytest.mark.parametrize("offset", due_today(range(3), 3))
@pytest.mark.parametrize("program", PROGRAMS)
def test_at_many_points(interrupts: Any, program: str, offset: int) -> None:
    check_program(interrupts, program, 90, 1 + 997 * offset)


def test_autograd_notices_writes_after_an_interrupted_trace(
    interrupts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While hooks on saved tensors are in force, autograd does not check their versions: those of
    a trace that stayed behind made wrong gradients of what eager refuses, until the process ended.
    """
    w = torch.randn(3, requires_grad=True)

    def run() -> Any:
        return braze.compile(lambda x: (x * w).exp())(torch.ones(3))

    lines = lines_of_hooks(interrupts, run, monkeypatch)
    assert len(lines) >= 2
    interrupted = 0
    for line in lines:
        for at in range(line - 14, line + 15, 3):
            interrupted += type(run_interrupted(interrupts, run, at)) is KeyboardInterrupt
            assert saved_hooks() is None
            y = w.exp()
            y.detach().add_(1)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                y.sum().backward()
    assert interrupted > 10


def test_what_an_interrupt_leaves_open_is_closed() -> None:
    functorch = torch._C._functorch

    def leave_levels_open() -> None:
        functorch._vmap_increment_nesting(3, "error")
        functorch._jvp_increment_nesting()
        torch.autograd.forward_ad.enter_dual_level()
        torch._C._set_fwd_grad_enabled(False)
        raise KeyboardInterrupt

    def leave_hooks() -> None:
        torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t).__enter__()
        raise KeyboardInterrupt

    def forbid_hooks() -> None:
        torch._C._autograd._saved_tensors_hooks_disable("why")
        raise KeyboardInterrupt

    def check(left: Callable[[], None]) -> None:
        before = thread_state()
        with pytest.raises(KeyboardInterrupt):
            run_isolated(left)
        assert thread_state() == before

    for left in (leave_levels_open, leave_hooks, forbid_hooks):
        check(left)
    for left in (leave_levels_open, leave_hooks):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            check(left)  # the program's own stay
    with torch.autograd.forward_ad.dual_level():
        pass
