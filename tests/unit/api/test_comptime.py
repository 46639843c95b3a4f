"""`braze.comptime`, and PyTorch's: calls made while a program is compiled, without a break."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.compile_time import CONTEXT_CALLS, Comptime
from braze.exc import GraphBreakError


def _torch_s() -> Any:
    from torch._dynamo.comptime import comptime

    return comptime


X = torch.linspace(-1, 1, 12).reshape(4, 3)
OF_BOTH = pytest.mark.parametrize(
    "make", [lambda: braze.comptime, _torch_s], ids=["braze", "torch"]
)
_Make = Callable[[], Any]


@OF_BOTH
def test_each_prints_once_and_breaks_nothing(
    make: _Make, capsys: pytest.CaptureFixture[str]
) -> None:
    c = make()

    def inner(y: torch.Tensor) -> torch.Tensor:
        z = y * 2
        c.print_bt()
        c.print_locals()
        c.print_graph()
        c.print_guards()
        c.print_value_stack()
        c.print_disas()
        return z + c.print_value_stack_and_return(y)

    def f(x: torch.Tensor) -> torch.Tensor:
        return inner(x.sin()) + 1

    compiled = braze.compile(f, fullgraph=True)
    torch.testing.assert_close(compiled(X), X.sin() * 3 + 1)
    said = capsys.readouterr().out
    first = inner.__code__.co_firstlineno
    stack = f'File "{__file__}", line {first + 2}, in {inner.__qualname__}\n    c.print_bt()\n'
    assert said.index("return inner(x.sin()) + 1") < said.index(stack)
    assert "y = Tensor f32[4, 3][3, 1]cpu\nz = Tensor f32[4, 3][3, 1]cpu\n" in said
    assert "= aten.mul.Tensor(%1, 2)  # " in said and "TENSOR_MATCH L['x']  # " in said
    assert "- Tensor f32[4, 3][3, 1]cpu" in said and "-->" in said and "RETURN_VALUE" in said
    torch.testing.assert_close(compiled(X), X.sin() * 3 + 1)
    assert capsys.readouterr().out == ""


@OF_BOTH
def test_a_function_is_given_the_context(make: _Make, capsys: pytest.CaptureFixture[str]) -> None:
    c, seen = make(), []

    def f(x: torch.Tensor, scale: float) -> torch.Tensor:
        y = x * scale

        @c
        def _(ctx: Any) -> None:
            y = ctx.get_local("y")
            seen.append((repr(y), y.python_type(), y.size(0), y.is_dynamic()))
            seen.append(ctx.get_local("scale").as_python_constant())

        c(lambda ctx: ctx.print(ctx.get_local("y")), lambda: seen.append("eager"))
        return y + 1

    torch.testing.assert_close(braze.compile(f, fullgraph=True)(X, 2.0), X * 2 + 1)
    assert seen == [("Tensor f32[4, 3][3, 1]cpu", torch.Tensor, 4, False), 2.0]
    assert capsys.readouterr().out == "Tensor f32[4, 3][3, 1]cpu\n"


@OF_BOTH
def test_breakpoint_opens_the_debugger_with_the_context(
    make: _Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def hook() -> None:
        ctx = sys._getframe(1).f_locals["ctx"]
        ctx.print_locals()
        opened.append(True)

    c, opened = make(), list[bool]()
    monkeypatch.setattr(sys, "breakpointhook", hook)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        c.breakpoint()
        return y

    compiled = braze.compile(f, fullgraph=True)
    assert torch.equal(compiled(X), X + 1) and torch.equal(compiled(X), X + 1)
    assert opened == [True] and "y = Tensor f32[4, 3][3, 1]cpu" in capsys.readouterr().out


@OF_BOTH
def test_graph_break_breaks(make: _Make) -> None:
    c = make()

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        c.graph_break()
        return y * 2

    with pytest.raises(GraphBreakError, match="explicit"):
        braze.compile(f, fullgraph=True)(X)
    found = braze.explain(f)(X)
    assert (found.graph_count, found.break_count) == (2, 1)
    assert torch.equal(found.result, (X + 1) * 2)


def test_what_stands_before_a_break_is_done_once(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor, events: list[str]) -> torch.Tensor:
        y = x + 1
        braze.comptime.print(y)
        braze.graph_break()
        braze.comptime.print(len(events))
        return y

    braze.compile(f)(X, [])
    assert capsys.readouterr().out == "Tensor f32[4, 3][3, 1]cpu\n0\n"


def test_symbols_are_shown_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        braze.comptime.print(x)
        braze.comptime.print(x.shape)
        return x * 2

    braze.compile(f, dynamic=True, fullgraph=True)(X)
    assert capsys.readouterr().out == "Tensor f32[s0, s1][s1, 1]cpu\n[s0, s1]\n"


def test_the_programs_own_repr_is_not_called(capsys: pytest.CaptureFixture[str]) -> None:
    class Loud:
        def __repr__(self) -> str:
            raise AssertionError("asked")

    def f(x: torch.Tensor, loud: Loud) -> torch.Tensor:
        braze.comptime.print(loud)
        braze.comptime.print_locals()
        return x * 2

    braze.compile(f, fullgraph=True)(X, Loud())
    assert "Loud>" in capsys.readouterr().out


def test_eager_does_nothing_but_print(capsys: pytest.CaptureFixture[str]) -> None:
    for name in CONTEXT_CALLS:
        assert callable(getattr(Comptime, name))
    ran: list[str] = []
    braze.comptime(lambda ctx: ran.append("compiled"), lambda: ran.append("eager"))
    braze.comptime.print_graph()
    braze.comptime.print(3)
    assert ran == ["eager"] and capsys.readouterr().out == "3\n"
    assert braze.comptime.print_value_stack_and_return(5) == 5
    assert builtins.print is print


def test_a_static_call_method_is_captured() -> None:
    class Doubled:
        @staticmethod
        def __call__(x: torch.Tensor) -> torch.Tensor:
            return x * 2

    doubled = Doubled()

    def f(x: torch.Tensor) -> torch.Tensor:
        return doubled(x) + 1

    compiled = braze.compile(f, fullgraph=True)
    assert torch.equal(compiled(X), X * 2 + 1)
    Doubled.__call__ = staticmethod(lambda x: x * 3)  # type: ignore[method-assign]
    assert torch.equal(compiled(X), f(X)) and torch.equal(f(X), X * 3 + 1)
