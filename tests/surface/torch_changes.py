"""What programs set in torch's modules, generated from `dir()` of them, and what undoes it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import re
import types
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.profiler
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.surface.torch_questions import flags, modules, names_in, shown


class Change(NamedTuple):
    """answers: of the questions that are answered otherwise while it holds, by name."""

    name: str
    apply: Callable[[], Any]
    undo: Callable[[], Any]
    answers: dict[str, str]


# Values that setters are tried with.
_NUMBERS = (None, True, False, 0, 1, 2, 3, 4, 5, 6)
_WORDS = (
    "auto bf16 cpu cublas cublaslt cusolver default error fbgemm greedy high highest ieee magma "
    "medium meta none nothing onednn optimal qnnpack some tf32 warn x86"
).split()
_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_PAIRS = (
    *itertools.product(("cpu", "cuda"), (True, False, *_DTYPES)),
    *itertools.product((True, False), (True, False)),
)
_PRECISIONS = tuple(
    itertools.product(
        ("generic", "cuda", "mkldnn"), ("all", "conv", "matmul", "rnn"), ("ieee", "tf32", "none")
    )
)
# They act on more than what a question shows, or cannot be undone.
_LEFT_ALONE = re.compile(
    r".*(worker|mobile|trac|mutable|metadata|tensor_type|graph_exec|creation|observer|dispatch_mode|"
    r"generator|_conj|_neg|flush|interop|torch_function|format|fatal|device_idx|device_index|stream|"
    r"rng|module|stance|backend_from|from_env|layer_keys|tls_|deploy|memory_fraction|jit_exec|"
    r"printoptions|thread_name|lift_cpu|default_backend|guard_collectives|per_process|ignore_compile)"
)


def answers_now(questions: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """The answers of all questions, as texts; of one that raises, what it raises."""
    found = {}
    for name, question in questions.items():
        try:
            found[name] = shown(question())
        except Exception as error:
            found[name] = f"raises {type(error).__name__}"
    return found


def changes(questions: dict[str, Callable[[], Any]]) -> Iterator[Change]:
    """Every change that a setter, a flag or a context manager makes to an answer; it is undone
    before the next one is looked for."""
    before = answers_now(questions)
    seen: set[tuple[str, str]] = set()
    for name, apply, undo in _attempts(questions, before):
        try:
            apply()
        except Exception:
            continue
        after = answers_now(questions)
        undo()
        again = answers_now(questions)
        changed = [question for question in before if again[question] != before[question]]
        if changed:
            raise AssertionError(f"{name} is not undone: {changed}")
        differing = {n: after[n] for n in before if after[n] != before[n]}
        outcome = (name.partition("(")[0], str(differing))
        if differing and outcome not in seen and not _is_any_value(name, seen):
            seen.add(outcome)
            yield Change(name, apply, undo, differing)


def _is_any_value(name: str, seen: set[tuple[str, str]]) -> bool:
    """Whether a setter keeps whatever it is given: a few values say enough."""
    setter = name.partition("(")[0]
    return sum(1 for other, _ in seen if other == setter) >= _MOST_VALUES


_MOST_VALUES = 6
_Attempt = tuple[str, Callable[[], Any], Callable[[], Any]]
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def _attempts(
    questions: dict[str, Callable[[], Any]], before: dict[str, str]
) -> Iterator[_Attempt]:
    seen: set[int] = set()
    kept = [(owner, name, getattr(owner, name)) for _, owner, name in flags()]

    def is_as_before() -> bool:
        _put_back(kept)
        return answers_now(questions) == before

    for module in modules():
        for name in names_in(module):
            value = inspect.getattr_static(module, name, None)
            full = f"{module.__name__}.{name}"
            if re.match(r"_?set_", name) and type(value) in _FUNCTIONS and id(value) not in seen:
                seen.add(id(value))
                if not _LEFT_ALONE.match(name):
                    yield from _settings(full, value, is_as_before)
    for full, owner, name in flags():
        yield from _flags(full, owner, name, functools.partial(_put_back, kept))
    for name, manager in _managers().items():
        yield from _entered(name, manager)


def _put_back(kept: list[tuple[Any, str, Any]]) -> None:
    """Flags as they were: some setters set several, and none of them sets these back. What one
    sets may change another, or make it raise, so that is repeated until all are right."""
    for _ in range(_MOST_ROUNDS):
        differing = [row for row in kept if not _holds(*row)]
        if not differing:
            return
        for owner, name, value in differing:
            with contextlib.suppress(Exception):
                setattr(owner, name, value)


_MOST_ROUNDS = 4  # flags that cannot be set stay as they are


def _holds(owner: Any, name: str, value: Any) -> bool:
    try:
        return bool(getattr(owner, name) == value)
    except Exception:
        return False


def _settings(name: str, setter: Any, is_as_before: Callable[[], bool]) -> Iterator[_Attempt]:
    """Calls of a setter, each undone by another call that leaves all as it was."""
    calls: list[tuple[Any, ...]] = [(value,) for value in (*_NUMBERS, *_WORDS, *_DTYPES)]
    for values in (*calls, *_PAIRS, *_PRECISIONS):
        found = calls if len(values) == 1 else [*_PAIRS, *_PRECISIONS]
        others = [c for c in found if len(c) == len(values) and c[:-1] == values[:-1]]
        others += [c for c in found if c not in others and len(c) == len(values) == 2]
        label = f"{name}({', '.join(map(repr, values))})"
        undo = functools.partial(_search, setter, others, is_as_before)
        yield label, functools.partial(setter, *values), undo


def _search(setter: Any, calls: list[tuple[Any, ...]], is_as_before: Callable[[], bool]) -> None:
    """Set back what a setter set, by the value that does it, which moves to the front."""
    if is_as_before():
        return
    for place, values in enumerate(calls):
        with contextlib.suppress(Exception):
            setter(*values)
            if is_as_before():
                calls.insert(0, calls.pop(place))
                return
    raise AssertionError(f"{setter} has no value that puts all back")


def _flags(full: str, owner: Any, name: str, put_back: Callable[[], Any]) -> Iterator[_Attempt]:
    """Other values of a flag, of its class."""
    old = getattr(owner, name)
    others: dict[type, Any] = {bool: (old is False,), str: _WORDS}
    if type(old) is int:
        others[int] = (old + 1,)
    for value in others.get(type(old), ()):
        yield f"{full} = {value!r}", functools.partial(setattr, owner, name, value), put_back


def _entered(name: str, manager: Callable[[], Any]) -> Iterator[_Attempt]:
    stack = contextlib.ExitStack()
    yield name, lambda: stack.enter_context(manager()), stack.close


@contextlib.contextmanager
def _default_group(rank: int, size: int) -> Iterator[None]:
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@contextlib.contextmanager
def _environment(**entries: str) -> Iterator[None]:
    with mock.patch.dict(os.environ, entries):
        yield


def _managers() -> dict[str, Callable[[], Any]]:
    """Context managers that enter a state, and the state of other modules."""
    found: dict[str, Callable[[], Any]] = {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "dual_level": torch.autograd.forward_ad.dual_level,
        "detect_anomaly": torch.autograd.detect_anomaly,
        "device meta": lambda: torch.device("meta"),
        "DisableTorchFunction": torch._C.DisableTorchFunction,
        "DisableTorchFunctionSubclass": torch._C.DisableTorchFunctionSubclass,
        "profile": torch.profiler.profile,
        "one process of 1": lambda: _default_group(0, 1),
        "one process of 8": lambda: _default_group(3, 8),
        "LOCAL_RANK": lambda: _environment(LOCAL_RANK="2"),
        "TORCHELASTIC_RUN_ID": lambda: _environment(TORCHELASTIC_RUN_ID="x"),
        "saved tensors hooks": lambda: torch.autograd.graph.saved_tensors_hooks(_same, _same),
        "no saved tensors hooks": lambda: torch.autograd.graph.disable_saved_tensors_hooks("no"),
        "set_multithreading": lambda: torch.autograd.set_multithreading_enabled(False),
        "fork rng": torch.random.fork_rng,
    }
    for device, dtype in itertools.product(("cpu", "cuda"), (torch.bfloat16, torch.float16)):
        label = f"autocast {device} {dtype}"
        found[label] = functools.partial(torch.autocast, device, dtype)
    for backend in SDPBackend.__members__.values():
        found[f"sdpa_kernel {backend}"] = functools.partial(sdpa_kernel, backend)
    for mode in ("default", "warn", "error"):
        found[f"deterministic {mode}"] = functools.partial(_deterministic, mode)
    return found


@contextlib.contextmanager
def _deterministic(mode: str) -> Iterator[None]:
    torch.set_deterministic_debug_mode(mode)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")


def _same(value: Any) -> Any:
    return value
