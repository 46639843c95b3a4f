"""Library calls that update lists of inputs do so in place: optimizers' fused=True on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze
from braze.codegen import triton
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.op_effects import untouched_arguments
from braze.ir.graphs.print_graph import parse_graph, print_graph
from braze.ir.kernels.schedule import ExternStep, Schedule
from braze.lower import lower
from braze.options import config
from braze.rewrite import rewrite
from braze.schedule import CPU, CUDA, schedule
from braze.schedule.memory.inplace_calls import list_update
from braze.tracing import Tracer
from tests.aten_names import aten_names

OPTIONS = config.snapshot()
SHAPES = ((4, 8), (8,), (3,))
Lists = dict[str, list[Tensor]]


def state(seed: int = 0) -> Lists:
    torch.manual_seed(seed)
    made = {name: [torch.rand(shape) for shape in SHAPES] for name in ("p", "m", "v", "n", "x")}
    return made | {"steps": [torch.ones(()) for _ in SHAPES]}


def gradients(lists: Lists) -> list[Tensor]:
    torch._foreach_add_(lists["steps"], 1)
    return [(x * 2 + 1).sin() for x in lists["x"]]


def adamw(lists: Lists) -> Tensor:
    given = gradients(lists)
    torch._fused_adamw_(
        lists["p"], given, lists["m"], lists["v"], [], lists["steps"], lr=0.1, beta1=0.9,
        beta2=0.99, weight_decay=0.01, eps=1e-8, amsgrad=False, maximize=False,
    )  # fmt: skip
    return given[0]


def amsgrad(lists: Lists) -> Tensor:
    given = gradients(lists)
    torch._fused_adam_(
        lists["p"], given, lists["m"], lists["v"], lists["n"], lists["steps"], lr=0.1, beta1=0.9,
        beta2=0.99, weight_decay=0.0, eps=1e-8, amsgrad=True, maximize=True,
    )  # fmt: skip
    return given[0]


def sgd(lists: Lists) -> Tensor:
    given = gradients(lists)
    torch._fused_sgd_(
        lists["p"], given, lists["m"], weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.0,
        nesterov=True, maximize=False, is_first_step=False,
    )  # fmt: skip
    return given[0]


def adagrad(lists: Lists) -> Tensor:
    given = gradients(lists)
    torch._fused_adagrad_(
        lists["p"], given, lists["v"], lists["steps"], lr=0.1, lr_decay=0.1, weight_decay=0.0,
        eps=1e-8, maximize=False,
    )  # fmt: skip
    return given[0]


def two_groups(lists: Lists) -> Tensor:
    first = {name: values[:1] for name, values in lists.items()}
    rest = {name: values[1:] for name, values in lists.items()}
    return adamw(first) + sgd(rest).sum()


UPDATES = {"adamw": 12, "amsgrad": 15, "sgd": 9, "adagrad": 9, "two_groups": 10}
PROGRAMS = (adamw, amsgrad, sgd, adagrad, two_groups)


def graph_of(program: Callable[[Lists], Any], given: Lists) -> Graph:
    tracer = Tracer(replayable=False)
    with torch.no_grad(), tracer:
        lists = {name: [tracer.add_input(x) for x in values] for name, values in given.items()}
        return tracer.finish([program(lists)]).graph


def calls_of(plan: Schedule) -> list[ExternStep]:
    return [step for step in plan.steps if isinstance(step, ExternStep)]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_parameter_is_copied(program: Callable[[Lists], Any], kind: str) -> None:
    text = print_graph(graph_of(program, state()))
    if kind == "cuda":
        text = text.replace("]cpu", "]cuda:0")
        graph = parse_graph(text)
        plan = schedule(lower(rewrite(graph, OPTIONS), OPTIONS, triton.supports), OPTIONS, CUDA)
    else:
        plan = schedule(lower(rewrite(parse_graph(text), OPTIONS), OPTIONS), OPTIONS, CPU)
    assert not plan.mutations and len(plan.in_place) == UPDATES[program.__name__]
    assert calls_of(plan) and all(step.in_place_op is not None for step in calls_of(plan))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_state_is_eager_s(program: Callable[[Lists], Any]) -> None:
    expected, found = state(), state()
    compiled = braze.compile(program, fullgraph=True)
    for _ in range(3):
        assert torch.allclose(compiled(found), program(expected))
        for name, values in expected.items():
            for one, other in zip(found[name], values, strict=True):
                torch.testing.assert_close(one, other)
                assert one._version == other._version, name


def read_after(lists: Lists) -> Tensor:
    """The new contents are read by another step."""
    adamw(lists)
    return lists["p"][0].exp()


def read_before(lists: Lists) -> Tensor:
    """The old contents are read by a step that may come after the update."""
    before = lists["p"][0].exp()
    return before + adamw(lists).sum()


def unscaled(lists: Lists) -> Tensor:
    """The gradients are written, too, and one of them is a result."""
    given = gradients(lists)
    torch._fused_sgd_(
        lists["p"], given, lists["m"], weight_decay=0.0, momentum=0.9, lr=0.1, dampening=0.0,
        nesterov=False, maximize=False, is_first_step=False, grad_scale=torch.tensor(2.0),
        found_inf=torch.tensor(0.0),
    )  # fmt: skip
    return given[0]


@pytest.mark.parametrize("program", [read_after, read_before, unscaled], ids=lambda p: p.__name__)
def test_other_readers_see_what_eager_s_do(program: Callable[[Lists], Any]) -> None:
    expected, found = state(), state()
    compiled = braze.compile(program, fullgraph=True)
    for _ in range(3):
        assert torch.allclose(compiled(found), program(expected))
        for name, values in expected.items():
            torch.testing.assert_close(found[name], values, msg=name)


def test_failing_update_raises_as_eager() -> None:
    """What came before it is written, once, and the error goes to the program."""

    def step(lists: Lists) -> None:
        torch._foreach_add_(lists["steps"], 1)
        torch._fused_sgd_(
            lists["p"], lists["x"], lists["m"], weight_decay=0.0, momentum=0.9, lr=0.1,
            dampening=0.0, nesterov=True, maximize=False, is_first_step=False,
        )  # fmt: skip

    outcomes = []
    for run in (step, braze.compile(step)):
        lists = state()
        lists["x"][1] = torch.rand(8).double()
        try:
            run(lists)
            outcomes.append(("", lists["steps"][0].item()))
        except Exception as error:
            outcomes.append((type(error).__name__, lists["steps"][0].item()))
    assert outcomes[0] == outcomes[1] and outcomes[0][0]


@pytest.mark.parametrize("program", [adamw, amsgrad, sgd, adagrad], ids=lambda p: p.__name__)
def test_kernels_leave_alone_what_is_said_untouched(program: Callable[[Lists], Any]) -> None:
    lists = state()
    given = gradients({**lists, "steps": [x.clone() for x in lists["steps"]]})
    steps = [x + 1 for x in lists["steps"]]
    result = program(lists)
    assert torch.equal(result, given[0])
    assert all(map(torch.equal, lists["steps"], steps))


def test_every_list_update_is_found() -> None:
    """Each operator of ATen with an in-place form that writes lists of tensors only, and its own
    functional form, is one; those that autograd decomposes into calls of one tensor aside."""
    names = [n for n in aten_names() if n.startswith("_fused_") and n.endswith("_")]
    assert len(names) >= 4
    for name in names:
        packet = getattr(torch.ops.aten, name.removesuffix("_"))
        for overload in packet.overloads():
            if overload.endswith("out"):
                continue
            form = list_update(getattr(packet, overload))
            assert form is not None and form.op.overloadpacket is getattr(torch.ops.aten, name)
            assert form.op._overloadname == overload
            assert untouched_arguments(form.op, {}) == {"grads", "state_steps"}
