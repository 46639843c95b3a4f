"""Ways in which a compiled callable comes to run the program's own code, as data."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import braze
from braze import pipeline
from braze.capture.calls.handler_registry import CALL_HANDLERS
from braze.errors import (
    CaptureError,
    GraphBreakError,
    LeftToEagerError,
    RecompileLimitExceeded,
)
from braze.ir.captured.frame import Refused
from braze.ir.origin import UNKNOWN
from braze.runtime.dispatch import cache_entries as entries
from braze.runtime.dispatch.runtime_checks import CheckFailed

X = torch.ones(3)
Made = Callable[..., Any]


def _call(made: Made) -> Any:
    return made(X)


def _nothing(patch: pytest.MonkeyPatch) -> None:
    """Braze is as it is."""


@dataclass(frozen=True)
class Situation:
    """make: what is compiled. code: why it is left to eager; is_rest: in its middle only.
    warns: it is for good. forbidden: what comes out under fullgraph; None: nothing does.
    call: calls what was compiled. raises: what the program raises. plant: puts a fault into Braze.
    after: what is done to what was compiled.
    """

    name: str
    make: Callable[[], Any]
    code: str
    warns: bool
    forbidden: type[BaseException] | None = GraphBreakError
    call: Callable[[Made], Any] = _call
    is_rest: bool = False
    raises: type[BaseException] | None = None
    backend: Any = "braze"
    options: dict[str, Any] = field(default_factory=dict)
    plant: Callable[[pytest.MonkeyPatch], None] = _nothing
    after: Callable[[Any], Any] = lambda made: made


# --- programs ------------------------------------------------------------------------------------


def add(x: Any) -> Any:
    return x + 1


def dropped(x: Any) -> Any:
    return torch.nn.functional.dropout(x, 0.5)


def count_up(x: Any) -> Iterator[Any]:
    yield x + 1


async def awaited(x: Any) -> Any:
    return x + 1


async def count_later(x: Any) -> Any:
    yield x + 1


def times(x: Any, n: int) -> Any:
    return x * n


def squared(x: Any) -> Any:
    return x * x


def raising(x: Any) -> Any:
    raise LookupError("meant")


def asking(x: Any) -> Any:
    if torch.compiler.is_compiling():
        raise RuntimeError("not under a compiler")
    return x + 1


def handling(x: Any) -> Any:
    y = x + 1
    try:
        os.stat("/there/is/no/such/file")
    except OSError:
        y = y * 2
    return y


def tracing(x: Any) -> Any:
    y = x + 1
    sys.settrace(sys.gettrace())
    return y * 2


def polling(x: Any) -> Any:
    y = x + 1
    for _ in range(600):
        os.stat("/")
    return y * 2


def erring(x: Any) -> Any:
    return x * math.erfc(0.0)


class Model(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        return x + 1


class Object:
    def method(self, x: Any) -> Any:
        return x + 1

    def __call__(self, x: Any) -> Any:
        return x + 1


class Function(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Dispatched(torch.Tensor):
    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        made = torch.Tensor._make_subclass(cls, inner)  # with memory of its own
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, Dispatched) else a for a in args]
        return func(*plain, **(kwargs or {}))


class Training:
    def __init__(self) -> None:
        self.model = torch.nn.Linear(3, 3)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self, x: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.model(x).sum()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


# --- calls ---------------------------------------------------------------------------------------


def of_numbers(made: Made) -> None:
    for n in range(2, 13):
        made(X, float(n))


def often(made: Made) -> None:
    for _ in range(10):
        made(X)


def under_function_mode(made: Made) -> Any:
    with torch.overrides.BaseTorchFunctionMode():
        return made(X)


def under_dispatch_mode(made: Made) -> Any:
    with FlopCounterMode(display=False):
        return made(X)


def under_stance(made: Made) -> Any:
    with braze.set_stance("force_eager"):
        return made(X)


def on_duals(made: Made) -> Any:
    with forward_ad.dual_level():
        return made(forward_ad.make_dual(X, X))


def under_saved_tensors_hooks(made: Made) -> Any:
    x = X.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved + 0, lambda saved: saved):
        return made(x)


def recomputed_behind_stance(made: Made) -> Any:
    with braze.set_stance("force_eager"):
        result = checkpoint(made, X.clone().requires_grad_(), use_reentrant=False)
    result.sum().backward()
    return result


# --- faults of Braze -----------------------------------------------------------------------------


def err_in_capture(patch: pytest.MonkeyPatch) -> None:
    def handler(interpreter: Any, args: Any, kwargs: Any) -> Any:
        raise ZeroDivisionError("made up")

    patch.setitem(CALL_HANDLERS, math.erfc, handler)


def refuse_all(patch: pytest.MonkeyPatch) -> None:
    refused = Refused("break", "recursion", "made up", "make it up", UNKNOWN)
    patch.setattr(pipeline, "capture_frame", lambda request: refused)


def hold_the_lock(patch: pytest.MonkeyPatch) -> None:
    """Another thread compiles the place, and goes on for longer than a call waits."""
    patch.setattr(entries, "_LONGEST_WAIT", 0.01)
    patch.setattr(entries, "make_lock", _Taken)


class _Taken:
    """A lock that another thread holds."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return False

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


def never_hold(patch: pytest.MonkeyPatch) -> None:
    compile_check = entries.compile_entry_check

    def compile_wrong_check(guards: Any, inputs: Any) -> Any:
        def check(values: Any) -> None:
            return None

        return replace(compile_check(guards, inputs), check=check)

    patch.setattr(entries, "compile_entry_check", compile_wrong_check)


def backend_raising(error: Exception) -> Any:
    def backend(graph: Any, example_inputs: Any) -> Any:
        def run(*inputs: Any) -> Any:
            raise error

        return run

    return backend


# --- the table -----------------------------------------------------------------------------------


def _is(value: Any) -> Callable[[], Any]:
    return lambda: value


def _given(tensor: Callable[[], Any]) -> Callable[[Made], Any]:
    return lambda made: made(tensor())


def _conjugate_of_inference_mode() -> Any:
    with torch.inference_mode():
        return torch.ones(3, dtype=torch.complex64).conj()


_KINDS: dict[str, Callable[[], Any]] = {
    "subclass with __torch_function__": lambda: X.as_subclass(Function),
    "subclass with __torch_dispatch__": lambda: Dispatched(X),
    "tensor of zeros without memory": lambda: torch._efficientzerotensor((3,)),
    "conjugate of inference mode": _conjugate_of_inference_mode,
    "negative leaf": lambda: torch.ones(3, dtype=torch.complex64).conj().imag.requires_grad_(),
}
_CALLABLES: dict[str, Callable[[], Any]] = {
    "function": _is(add),
    "module": Model,
    "method": lambda: Object().method,
    "object": Object,
}


class Alarm(Exception):
    """What the handler of a signal raises."""


def cut_short(x: Any) -> Any:
    """Takes several times as long as the alarm."""
    try:
        for _ in range(150):
            x = x @ x
            x = x / x.norm()
    except Alarm:
        return None
    return x


def under_an_alarm(made: Made) -> Any:
    def ring(number: int, frame: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        return made(torch.ones(256, 256))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


SITUATIONS = (
    Situation("alarm", _is(cut_short), "signal", False, None, call=under_an_alarm),
    Situation("generator", _is(count_up), "unsupported-function", True),
    Situation(
        "coroutine",
        _is(awaited),
        "unsupported-function",
        True,
        call=lambda made: asyncio.run(made(X)),
    ),
    Situation("asynchronous generator", _is(count_later), "unsupported-function", True),
    *[
        Situation(f"{kind} for a {name}", make, "unsupported-tensor", True, call=_given(tensor))
        for kind, tensor in _KINDS.items()
        for name, make in _CALLABLES.items()
    ],
    *[
        Situation(f"{name} for a {what}", make, "tracer", False, LeftToEagerError, call=call)
        for name, call in (
            ("function mode", under_function_mode),
            ("dispatch mode", under_dispatch_mode),
            ("functionalize", lambda made: torch.func.functionalize(made)(X)),
        )
        for what, make in _CALLABLES.items()
    ],
    *[
        Situation(f"random numbers under {name}", _is(dropped), "transform", True, call=call)
        for name, call in (
            ("forward mode", on_duals),
            ("vmap", lambda made: torch.vmap(made, randomness="different")(X)),
            ("grad", lambda made: torch.func.grad(lambda x: made(x).sum())(X)),
        )
    ],
    Situation("refused frame", _is(add), "recursion", True, plant=refuse_all),
    Situation("refused frames", _is(add), "refusal-limit", True, plant=refuse_all, call=often),
    Situation(
        "recompiles",
        _is(times),
        "recompile-limit",
        True,
        RecompileLimitExceeded,
        call=of_numbers,
        options={"dynamic": False},
    ),
    Situation("raises", _is(raising), "program-raises", False, LookupError, raises=LookupError),
    Situation("asks", _is(asking), "raised-in-capture-only", True, LeftToEagerError),
    Situation(
        "arguments",
        _is(add),
        "wrong-arguments",
        False,
        TypeError,
        call=lambda made: made(),
        raises=TypeError,
    ),
    Situation(
        "single use",
        lambda: Training().step,
        "single-use",
        False,
        None,
        options={"single_use_limit": 0},
    ),
    Situation(
        "hooks on saved tensors",
        _is(squared),
        "saved-tensors-hooks",
        False,
        LeftToEagerError,
        call=under_saved_tensors_hooks,
    ),
    Situation(
        "forward of a checkpoint was eager",
        _is(squared),
        "recomputed",
        False,
        None,
        call=recomputed_behind_stance,
    ),
    Situation("run only", _is(add), "run-only", False, None, after=braze.run),
    Situation("stance", _is(add), "stance", False, None, call=under_stance),
    Situation("handled exception", _is(handling), "handled-exception", False, is_rest=True),
    Situation("polling", _is(polling), "idle-breaks", True, is_rest=True),
    Situation(
        "compile in progress",
        _is(add),
        "compile-in-progress",
        False,
        LeftToEagerError,
        plant=hold_the_lock,
    ),
    Situation("own frame", _is(tracing), "unseen-callable", True, is_rest=True),
    Situation(
        "graph fault",
        _is(add),
        "graph-fault",
        True,
        LeftToEagerError,
        backend=backend_raising(ZeroDivisionError("made up")),
    ),
    Situation(
        "check",
        _is(add),
        "check-failed",
        True,
        LeftToEagerError,
        backend=backend_raising(CheckFailed("made up")),
    ),
    Situation("unstable", _is(add), "unstable-guard", True, LeftToEagerError, plant=never_hold),
    Situation("fault", _is(erring), "internal-error", True, CaptureError, plant=err_in_capture),
)
