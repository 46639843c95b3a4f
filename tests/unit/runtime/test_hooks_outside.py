"""Hooks that `disable()` leaves out run around a module's compiled forward, as eager calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import braze

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Hook = Callable[..., Any]

# By name: what registers hooks on a module that log into a list, and pass on or change values.
Register = Callable[[nn.Module, list[Any], Callable[[Hook], Hook]], None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return torch.relu(self.linear(x)) * scale


def _passing(module: nn.Module, log: list[Any], leave_out: Callable[[Hook], Hook]) -> None:
    module.register_forward_pre_hook(leave_out(lambda m, args: log.append(("before", m is module))))
    module.register_forward_hook(leave_out(lambda m, args, r: log.append(("behind", len(args)))))


def _changing(module: nn.Module, log: list[Any], leave_out: Callable[[Hook], Hook]) -> None:
    module.register_forward_pre_hook(leave_out(lambda m, args: args[0] * 2))
    module.register_forward_pre_hook(leave_out(lambda m, args: (args[0] + 1,)))
    module.register_forward_hook(leave_out(lambda m, args, result: result - args[0]))


def _with_keywords(module: nn.Module, log: list[Any], leave_out: Callable[[Hook], Hook]) -> None:
    def before(m: nn.Module, args: Any, kwargs: Any) -> Any:
        log.append(sorted(kwargs))
        return args, {"scale": 3.0}

    def behind(m: nn.Module, args: Any, kwargs: Any, result: Any) -> Any:
        log.append(kwargs)

    module.register_forward_pre_hook(leave_out(before), with_kwargs=True)
    module.register_forward_hook(leave_out(behind), with_kwargs=True)


def _beside_others(module: nn.Module, log: list[Any], leave_out: Callable[[Hook], Hook]) -> None:
    module.register_forward_pre_hook(leave_out(lambda m, args: log.append("left out")))
    module.register_forward_pre_hook(lambda m, args: (args[0].sin(),), prepend=True)
    module.register_forward_hook(lambda m, args, result: result.exp())


def _removing(module: nn.Module, log: list[Any], leave_out: Callable[[Hook], Hook]) -> None:
    handles: list[Any] = []
    note = module.register_forward_hook(leave_out(lambda m, args, r: log.append("late")))

    def before(m: nn.Module, args: Any) -> None:
        log.append("once")
        handles.pop().remove()
        note.remove()

    handles.append(module.register_forward_pre_hook(leave_out(before)))


def _refusing(module: nn.Module, log: list[Any], leave_out: Callable[[Hook], Hook]) -> None:
    module.register_forward_pre_hook(leave_out(lambda m, args, kwargs: args), with_kwargs=True)


def _raising(module: nn.Module, log: list[Any], leave_out: Callable[[Hook], Hook]) -> None:
    def behind(m: nn.Module, args: Any, result: Any) -> None:
        log.append("raises")
        raise KeyError("hook")

    module.register_forward_hook(leave_out(behind))


def _always(module: nn.Module, log: list[Any], leave_out: Callable[[Hook], Hook]) -> None:
    module.register_forward_hook(
        leave_out(lambda m, args, result: log.append(result is None)), always_call=True
    )
    _raising(module, log, leave_out)


PROGRAMS: dict[str, Register] = {
    "passing": _passing,
    "changing": _changing,
    "with keywords": _with_keywords,
    "beside others": _beside_others,
    "removing": _removing,
    "refusing": _refusing,
    "raising": _raising,
    "always": _always,
}
WAYS = {"compile": braze.compile, "in place": braze.compile_in_place}
LEAVE_OUT = {"torch": torch.compiler.disable, "braze": braze.disable}


def _outcome(
    register: Register, leave_out: Callable[[Hook], Hook], compile: Callable[[Any], Any]
) -> list[Any]:
    torch.manual_seed(0)
    module, log = Block(), []
    register(module, log, leave_out)
    called = compile(module)
    for scale in (1.0, 2.0, 2.0):
        try:
            result = called(X, scale=scale)
        except Exception as error:
            log.append((type(error), str(error)[:40]))
            continue
        result.sum().backward()
        log.append(result.detach())
    return [*log, *[p.grad for p in module.parameters()]]


@pytest.mark.parametrize("leave_out", LEAVE_OUT)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_hooks_act_as_in_eager(program: str, way: str, leave_out: str) -> None:
    given = PROGRAMS[program], LEAVE_OUT[leave_out]
    wanted = _outcome(*given, lambda module: module)
    braze.reset()
    found = _outcome(*given, WAYS[way])
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other)
        else:
            assert one == other


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", ["passing", "changing", "with keywords"])
def test_the_forward_is_one_whole_graph(program: str, way: str) -> None:
    braze.reset()
    module, log = Block(), []
    PROGRAMS[program](module, log, torch.compiler.disable)
    called = WAYS[way](module)
    for _ in range(4):
        called(X, scale=2.0)
    (row,) = braze.status()
    assert (row.entries, row.graphs, row.breaks, row.calls) == (1, 1, (), 4)


def test_other_hooks_get_graphs_of_their_own() -> None:
    braze.reset()
    module, log = Block(), []
    _beside_others(module, log, torch.compiler.disable)
    called = braze.compile(module)
    for _ in range(3):
        called(X)
    (row,) = braze.status()
    assert (row.entries, row.breaks, log) == (3, (), ["left out"] * 3)


def test_hooks_that_are_traced_stay_inside() -> None:
    braze.reset()
    module = Block()
    module.register_forward_hook(lambda m, args, result: result.exp())
    called = braze.compile(module, fullgraph=True)
    torch.testing.assert_close(called(X), module(X))
    (row,) = braze.status()
    assert (row.entries, row.graphs) == (1, 1)
