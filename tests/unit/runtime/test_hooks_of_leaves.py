"""A compiled backward goes past hooks of leaves nowhere, and takes no other thing for a hook: a
history of an earlier call that is still alive is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge
from torch.nn.parallel import DistributedDataParallel

import braze
from braze.runtime.guards.leaf_hooks import WATCH

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lines = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.lines(x)
        return result


# --- backwards within a compiled function, which give a loss with a history -----------------------

Program = Callable[[nn.Module, Tensor], tuple[Tensor, ...]]


def gradients(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    loss = model(x).square().sum()
    return loss, *torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)


def backward(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    loss = model(x).square().sum()
    loss.backward()
    return (loss,)


def backward_to_some(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    loss = model(x).square().sum()
    loss.backward(inputs=list(model.parameters())[1:], retain_graph=True)
    return (loss,)


def adapted(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    named = dict(model.named_parameters())
    loss = model(x).square().sum()
    found = torch.autograd.grad(loss, list(named.values()), create_graph=True)
    moved = {name: p - 0.1 * g for (name, p), g in zip(named.items(), found, strict=True)}
    return (torch.func.functional_call(model, moved, (x,)).square().sum(),)


def penalized(model: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    x = x.detach().requires_grad_()
    value = model(x).sum()
    (slope,) = torch.autograd.grad(value, x, create_graph=True)
    return (value + (slope.norm(dim=1) - 1).square().sum(),)


PROGRAMS: list[Program] = [gradients, backward, backward_to_some, adapted, penalized]


def _net() -> nn.Module:
    torch.manual_seed(0)
    return Net()


def _same_state(ours: nn.Module, eager: nn.Module) -> None:
    for p, q in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", PROGRAMS)
def test_kept_losses_stay_one_graph(program: Program, dynamic: bool | None) -> None:
    ours, eager = _net(), _net()
    for model in (ours, eager):  # the first gradients are another entry
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
    compiled = braze.compile(program, fullgraph=True, dynamic=dynamic)
    kept: list[tuple[Tensor, ...]] = []
    for _ in range(4):
        kept.append(compiled(ours, X))
        torch.testing.assert_close(kept[-1], program(eager, X))
    _same_state(ours, eager)
    row = braze.status()[-1]
    assert (row.graphs, row.entries, row.calls, row.calls_left) == (1, 1, 4, 0)
    assert not row.breaks and not row.recompiles


def test_a_live_history_is_no_hook() -> None:
    leaf = torch.ones(2, requires_grad=True)
    history = leaf * 2
    assert not WATCH.is_watched(leaf)
    node = get_gradient_edge(leaf).node
    del history
    assert not WATCH.is_watched(leaf)
    node.register_prehook(lambda *given: None)
    assert WATCH.is_watched(leaf)


# --- hooks, put on before the first call or between two -------------------------------------------

Log = list[str]


def _tensor_hook(model: nn.Module, log: Log) -> Any:
    return [p.register_hook(lambda g: log.append("tensor")) for p in model.parameters()]


def _changing_hook(model: nn.Module, log: Log) -> Any:
    return [p.register_hook(lambda g: g * 2) for p in model.parameters()]


def _accumulated(model: nn.Module, log: Log) -> Any:
    return [
        p.register_post_accumulate_grad_hook(lambda p: log.append("accumulated"))
        for p in model.parameters()
    ]


def _node_hook(model: nn.Module, log: Log) -> Any:
    nodes = [get_gradient_edge(p).node for p in model.parameters()]
    return nodes, [n.register_hook(lambda *given: log.append("node")) for n in nodes]


def _node_prehook(model: nn.Module, log: Log) -> Any:
    nodes = [get_gradient_edge(p).node for p in model.parameters()]
    return nodes, [n.register_prehook(lambda *given: log.append("before")) for n in nodes]


def _all_gradients(model: nn.Module, log: Log) -> Any:
    both = list(model.parameters())[:2]
    return torch.autograd.graph.register_multi_grad_hook(both, lambda gs: log.append("multi"))


def _reducer(model: nn.Module, log: Log) -> Any:
    reduced = DistributedDataParallel(model)

    def hook(state: None, bucket: Any) -> Any:
        log.append("reduced")
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer() * 3)
        return future

    hook.__annotations__ = {}  # DDP compares them with classes, and here they are texts
    reduced.register_comm_hook(None, hook)
    return reduced


HOOKS = [
    *(_tensor_hook, _changing_hook, _accumulated, _node_hook, _node_prehook, _all_gradients),
    _reducer,
]


# Eager refuses a hook of several leaves under `torch.autograd.grad`, and a reducer waits for the
# gradients of all.
REFUSED = [(_all_gradients, gradients), (_all_gradients, adapted)]
REFUSED += [(_reducer, program) for program in PROGRAMS if program is not backward]
PAIRS = [(r, p) for r in HOOKS for p in PROGRAMS if (r, p) not in REFUSED]


@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize(("register", "program"), PAIRS)
@pytest.mark.usefixtures("process_group")
def test_hooks_run(program: Program, register: Any, keeps: bool, at: int) -> None:
    found: list[Any] = []
    for compiles in (False, True):
        model, log, kept, handles = _net(), [], [], []
        call = braze.compile(program) if compiles else program
        for number in range(4):
            if number == at:
                handles.append(register(model, log))
            # DDP reduces what a call of its own announced.
            model_called = handles[0] if handles and register is _reducer else model
            results = call(model_called, X)
            log.append("call")
            if program in (adapted, penalized):
                results[0].backward()
            kept.append(results if keeps else [r.detach() for r in results])
        found.append((log, kept, [p.grad for p in model.parameters()]))
    eager, ours = found
    assert ours[0] == eager[0]
    torch.testing.assert_close(ours[1], eager[1])
    torch.testing.assert_close(ours[2], eager[2])
