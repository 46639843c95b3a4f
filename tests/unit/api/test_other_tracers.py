"""Compiled callables under somebody else's tracer, mode or transform: the original runs."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.utils.flop_counter
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import braze
from braze.compat.torch.ambient_state import ambient_state
from braze.compat.torch.tracers import active_tracer
from braze.compat.torch.versions import TORCH
from tests.recorded import recorded

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Y = X.flip(0) * 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(self.linear(x)) + self.shift


class Outer(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * 2


class OfParameters(nn.Module):
    """Calls a compiled method that takes no argument."""

    def __init__(self, compile: Callable[[Any], Any]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.norm = compile(self.squared)

    def squared(self) -> torch.Tensor:
        return self.weight * self.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.norm()


def function(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1) * x


def same(target: Any) -> Any:
    return target


# Of a compile, what it gives as a module: the same with `same` is the original.
PROGRAMS: dict[str, Callable[[Callable[[Any], Any]], nn.Module]] = {
    "module": lambda compile: compile(Block()),
    "in place": lambda compile: Block() if compile is same else braze.compile_in_place(Block()),
    "block": lambda compile: Outer(compile(Block())),
    "block in place": lambda compile: Outer(
        Block() if compile is same else braze.compile_in_place(Block())
    ),
    "function": lambda compile: Outer(compile(function)),
    "method": lambda compile: OfParameters(compile),
}


def exported(module: nn.Module, strict: bool) -> Any:
    return torch.export.export(module, (X,), strict=strict).module()


TRACERS: dict[str, Callable[[nn.Module], Any]] = {
    "jit.trace": lambda module: torch.jit.trace(module, X, check_trace=False),
    "make_fx": lambda module: make_fx(module)(X),
    "make_fx, before dispatch": lambda module: make_fx(module, pre_dispatch=True)(X),
    "symbolic_trace": torch.fx.symbolic_trace,
    "export": functools.partial(exported, strict=False),
    "export, strict": functools.partial(exported, strict=True),
    "torch.compile": lambda module: torch.compile(module, backend="eager"),
    "vmap": torch.vmap,
    "jvp": lambda module: lambda x: torch.func.jvp(module, (x,), (x,))[1],
    "vjp": lambda module: lambda x: torch.func.vjp(module, x)[1](x)[0],
    "jacobian": lambda module: torch.func.jacrev(lambda x: module(x).sum(0)),
    "functionalize": torch.func.functionalize,
    "functional_call": lambda module: (
        lambda x: torch.func.functional_call(
            module, {name: p * 2 for name, p in module.named_parameters()}, (x,)
        )
    ),
    "forward mode": lambda module: lambda x: _tangent(module, x),
}


def _tangent(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        result = module(torch.autograd.forward_ad.make_dual(x, x))
        return torch.autograd.forward_ad.unpack_dual(result).tangent


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
    torch._dynamo.reset()


def _made(program: str, compile: Callable[[Any], Any]) -> nn.Module:
    torch.manual_seed(0)
    return PROGRAMS[program](compile)


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("tracer", TRACERS)
def test_traced_as_the_original(tracer: str, program: str, warm: bool) -> None:
    """For another input too: no result has become a constant; and calls that nobody traces are
    compiled as before."""
    if tracer == "export, strict" and program in ("function", "method") and TORCH < (2, 12):
        pytest.skip("strict export of PyTorch 2.11 calls no attribute that is a callable object")
    wanted = TRACERS[tracer](_made(program, same))
    with recorded() as journal:
        compiled = _made(program, braze.compile)
        if warm:
            for _ in range(3):
                compiled(X)
        traced = TRACERS[tracer](compiled)
        for x in (X, Y):
            torch.testing.assert_close(traced(x), wanted(x))
        compiled(X[:2])
        compiled(X[:2])
    records = journal.records()
    assert {record.outcome for record in records} <= {"graph", "backward"}
    assert sum(record.counters.get("kernels", 0) for record in records) > 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_modes_see_every_operator(program: str) -> None:
    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(str(op))
            return op(*args, **(kwargs or {}))

    class Functions(TorchFunctionMode):
        def __torch_function__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(getattr(op, "__name__", ""))
            return op(*args, **(kwargs or {}))

    modes: tuple[Callable[[], Any], ...] = (
        Names,
        Functions,
        functools.partial(torch.utils.flop_counter.FlopCounterMode, display=False),
    )
    for mode in modes:
        found: list[Any] = []
        for compile in (same, braze.compile):
            seen: list[str] = []
            module = _made(program, compile)
            module(X)
            with mode() as entered:
                module(X)
            flops = getattr(entered, "get_total_flops", lambda: None)()
            found.append((seen, flops))
        assert found[0] == found[1]


def test_said_once_and_counted() -> None:
    with recorded() as journal:
        compiled = braze.compile(function)
        for _ in range(3):
            torch.func.functionalize(compiled)(X)
    assert not journal.records()
    (said,) = journal.left_to_eager()
    assert "torch.func" in said.reason and said.function.endswith("function")


@pytest.mark.parametrize("calls", [1, 20])
def test_tracers_close_nothing(calls: int) -> None:
    """A place that was called under tracers only is compiled at its first call without one."""
    with recorded() as journal:
        compiled = braze.compile(function)
        for _ in range(calls):
            torch.func.functionalize(compiled)(X)
        compiled(X)
    assert [record.outcome for record in journal.records()] == ["graph"]


def _below_autograd() -> Any:
    return torch._C._AutoDispatchBelowAutograd()


class _Functionalized:
    def __enter__(self) -> None:
        torch._enable_functionalization(reapply_views=True)  # type: ignore[attr-defined]

    def __exit__(self, *exception: object) -> None:
        torch._disable_functionalization()  # type: ignore[attr-defined]


@pytest.mark.parametrize("state", [_below_autograd, _Functionalized])
def test_unusual_dispatch_keys_are_noticed(state: Callable[[], Any]) -> None:
    """States of the dispatcher without a public name, as kernels in Python enter them."""
    assert active_tracer() is None and ambient_state().unusual_keys == 0
    x = X.clone().requires_grad_(True)
    with recorded() as journal:
        compiled = braze.compile(function)
        for _ in range(3):
            compiled(x)
        before = len(journal.records())
        with state():
            assert active_tracer() is not None
            wanted = function(x).requires_grad
            assert compiled(x).requires_grad is wanted
        assert len(journal.records()) == before and journal.left_to_eager()
    assert active_tracer() is None


def test_scripted_as_the_original() -> None:
    torch.testing.assert_close(torch.jit.script(braze.compile(function))(Y), function(Y))
    model = Outer(braze.compile(Block()))
    with pytest.warns(braze.exc.BrazeWarning, match="compile it again"):
        scripted = torch.jit.script(model)
    torch.testing.assert_close(scripted(Y), model(Y))
    assert type(model.inner) is Block
