"""What is called after a break is compiled in its own right."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch

from braze.ir.captured.compile_request import CompileRequest
from braze.ir.captured.frame import Refused
from braze.ir.origin import UNKNOWN
from braze.marks import MARKS, Mark
from braze.runtime.dispatch.callees import compile_callees, is_worth_compiling
from braze.runtime.dispatch.compiled_function import Dispatcher
from braze.runtime.dispatch.module_wrapper import shield


def refuse(request: CompileRequest) -> Refused:
    names.append(request.code.co_qualname)
    return Refused("break", "", "", "", UNKNOWN)


names: list[str] = []


def double(x: int) -> int:
    return x * 2


def yields(x: int) -> Any:
    yield x


class Model(torch.nn.Module):
    def forward(self, x: int) -> int:
        return x + 1


class Holder:
    def method(self, x: int) -> int:
        return x + 2


def compiled(*calls: tuple[Any, int]) -> list[str]:
    """The functions that went through the compiler when `calls` were made after a break."""
    dispatcher = Dispatcher(refuse)
    compile_callees(dispatcher)
    names.clear()
    for callable, result in calls:
        value = dispatcher.call(callable, (3,), {})
        assert (next(value) if isinstance(value, types.GeneratorType) else value) == result
    return list(names)


def test_functions_methods_and_modules_are_compiled() -> None:
    assert compiled((double, 6)) == ["double"]
    assert compiled((Holder().method, 5)) == ["Holder.method"]
    assert compiled((Model(), 4)) == ["Module._call_impl"]


def test_what_is_not_the_users_work_is_called_as_it_is() -> None:
    disabled = types.FunctionType(double.__code__, double.__globals__)
    MARKS.put(disabled, Mark.DISABLE)
    shielded = shield(Model(), lambda model: lambda model, x: x + 1)
    others = [(abs, 3), (yields, 3), (disabled, 6), (functools.partial(double), 6), (int, 3)]
    assert compiled(*others, (shielded, 4), (torch.nn.Identity().extra_repr.__func__, "")) == []
    assert not is_worth_compiling(torch.nn.functional.relu)
    assert not is_worth_compiling(functools.wraps)


def test_a_function_is_compiled_once() -> None:
    dispatcher = Dispatcher(refuse)
    held = dispatcher.callees()
    assert held.compiled(double) is dispatcher.compiled(double)
    assert dispatcher.compiled(double) is dispatcher.compiled(double)
