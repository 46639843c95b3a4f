"""Every context manager of torch, entered inside of compiled functions and around them: values,
dtypes, gradients, hooks and exceptions are eager's, and so is the state that is left behind."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import braze
from tests.process_state import BEGINNING, put_back, state_of_process, switches
from tests.shares import due_today
from tests.surface.contexts import ARGUMENTS, LEFT_OUT, WEIGHTS, found_managers, log, ways

Program = Callable[[Any], Callable[..., Any]]


def body(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Operators whose results, or what they save, some manager changes."""
    made = torch.sin(x @ w) * x
    fresh = torch.ones(4) + 1
    return made, fresh, x[0], WEIGHTS(x).relu(), w.exp() * x.detach()


def inside(manager: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        with manager():
            made = body(x, w)
        return (*made, (x @ w).sin(), torch.ones(2))

    return f


def twice(manager: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x * 2
        with manager():
            y = torch.sin(y @ w)
            with manager():
                y = torch.cos(y @ w) * y
        with manager():
            return (y * w).tanh(), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")

    return f


def raising(manager: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x @ w
        try:
            with manager():
                y = torch.sin(y @ w)
                raise ValueError("of the program's")
        except ValueError as error:
            y = (y @ w) * len(str(error))
        return y.cos(), torch.zeros(2)

    return f


def breaking(manager: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        with manager():
            y = torch.sin(x @ w)
            braze.graph_break()
            y = y @ w
        return y.exp(), torch.zeros(2)

    return f


def stepping(manager: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        with manager():
            y = torch.sin(x @ w)
            (y * y).sum().backward()
        return x.grad, w.grad

    return f


def asking(manager: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        with manager():
            y = torch.sin(x @ w)
            return torch.autograd.grad((y * y).sum(), [x, w])

    return f


def on_a_stack(manager: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(manager())
            return body(x, w)

    return f


def decorated(manager: Any) -> Callable[..., Any]:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        return manager()(body)(x, w)

    return f


INSIDE: tuple[Program, ...] = (
    inside,
    twice,
    raising,
    breaking,
    stepping,
    asking,
    on_a_stack,
    decorated,
)


class Close:
    """Numbers that equal those that differ by what a cast to half precision loses."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self.numbers = numbers

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Close):
            return False
        return torch.allclose(self.numbers, other.numbers, rtol=2e-2, atol=2e-2, equal_nan=True)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return str(self.numbers.round(decimals=3).tolist())


def shown(value: Any) -> Any:
    """What is compared of a result."""
    if isinstance(value, (tuple, list)):
        return tuple(map(shown, value))
    if not isinstance(value, torch.Tensor):
        return value
    numbers = None if value.is_meta else Close(value.detach().double().clone())
    facts = (value.dtype, value.device, value.requires_grad, value.is_inference(), value.is_leaf)
    return tuple(value.shape), numbers, *facts, value._is_view()


def state() -> Any:
    """What a manager may leave changed."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_anomaly_enabled(),
        torch.get_default_device(),
        torch._C._len_torch_function_stack(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._autograd._saved_tensors_hooks_is_enabled(),
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        torch.autograd.forward_ad._current_level,
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.mkldnn.enabled,
        torch.get_num_threads(),
    )


def made_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()
    return x, torch.linspace(0, 2, 16).reshape(4, 4).requires_grad_()


def outcome(call: Callable[..., Any], around: Callable[[], Any] = contextlib.nullcontext) -> Any:
    """Results, gradients, what hooks and modes noted, and what is left changed."""
    x, w = made_inputs()
    log.clear()
    WEIGHTS.zero_grad(set_to_none=True)
    torch.manual_seed(3)
    try:
        results = _results(call, around, x, w)
        gradients = shown([x.grad, w.grad, WEIGHTS.weight.grad])
        return results, gradients, tuple(log), state()
    finally:
        settle()


def _results(
    call: Callable[..., Any], around: Callable[[], Any], x: torch.Tensor, w: torch.Tensor
) -> Any:
    """What a call gives, or how it fails, and a backward through it."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            with around():
                made = call(x, w)
            results = shown(made)
            roots = [r for r in _tensors(made) if r.requires_grad and not r.is_meta]
            roots = [root for root in roots if root.grad_fn is not None]
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    except Exception as error:
        return type(error), str(error)[:60]
    return results


def settle() -> None:
    """Put back what whoever makes or enters a manager changes."""
    put_back(BEGINNING)


def _tensors(made: Any) -> Sequence[torch.Tensor]:
    if isinstance(made, torch.Tensor):
        return (made,)
    return [t for one in made for t in _tensors(one)] if isinstance(made, (tuple, list)) else ()


WAYS = dict(ways())


def own_backend(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    """A backend of a user's: runs what the text of the graph says."""
    return graph.forward


def test_managers_that_are_made_only_leave_nothing_behind() -> None:
    """Else whatever runs later in this process meets another eager."""
    changed = set()
    for make in WAYS.values():
        try:
            make()
        finally:
            changed.update(line.split(":")[0] for line in put_back(BEGINNING))
        assert state_of_process() == BEGINNING
    assert {"transforms", "ambient state", *switches()} <= changed


BACKENDS: tuple[Any, ...] = ("aot_eager", "eager", own_backend)
# The other half of what follows is for a whole run: programs with one backend, and one with all.
FAST = [(program, "eager") for program in (inside, breaking)] + [(asking, "aot_eager")]
ALL = [(program, backend) for program in INSIDE for backend in BACKENDS]


def _named(case: Any) -> str:
    program, backend = case
    return f"{program.__name__}-{backend if isinstance(backend, str) else backend.__name__}"


def check_inside(label: str, program: Program, backend: Any) -> None:
    """The same manager entered by the same program: eagerly, and compiled, twice."""
    f = program(WAYS[label])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(f)
        compiled = braze.compile(f, backend=backend)
        assert outcome(compiled) == expected
        assert outcome(compiled) == expected


@pytest.mark.parametrize("case", FAST, ids=_named)
@pytest.mark.parametrize("label", WAYS)
def test_entered_inside_as_eager(label: str, case: Any) -> None:
    check_inside(label, *case)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "case"),
    due_today(
        [
            pytest.param(label, case, id=f"{label}-{_named(case)}")
            for case in ALL
            if case not in FAST
            for label in WAYS
        ],
        3,
    ),
)
def test_entered_inside_in_all_programs(label: str, case: Any) -> None:
    check_inside(label, *case)


def check_around(label: str, backend: Any, orders: Sequence[Sequence[int]]) -> None:
    """Around a call and not around the next: what was compiled before serves no other state."""
    manager = WAYS[label]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain, within = outcome(body), outcome(body, manager)
        for order in orders:
            compiled = braze.compile(body, backend=backend)
            for entered in order:
                made = outcome(compiled, manager) if entered else outcome(compiled)
                assert made == (within if entered else plain)


@pytest.mark.parametrize("label", WAYS)
def test_entered_around_as_eager(label: str) -> None:
    check_around(label, "aot_eager", [(0, 1, 0)])


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("label", due_today([*WAYS], 3))
def test_entered_around_in_each_order(label: str, backend: Any) -> None:
    check_around(label, backend, [(0, 1, 0, 1), (1, 0, 1, 0)])


def test_managers_are_found() -> None:
    """The sweep is of what torch has; none is both tried and left out."""
    found = found_managers()
    assert len(WAYS) > 60
    assert {"torch.autocast", "torch.autograd.graph.saved_tensors_hooks"} <= found.keys()
    assert not LEFT_OUT.keys() & ARGUMENTS.keys()
