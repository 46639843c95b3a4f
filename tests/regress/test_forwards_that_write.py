"""The forward of an autograd function runs once a call, by any backend, and reads what the frame
wrote before; which result of an operation a tensor is does not depend on a graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import braze
from tests.recorded import recorded


class Host:
    scale = 1
    log: list[str]


class Logged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Any, host: Any) -> Any:
        host.log.append("forward")
        return value * 2, value + 0

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 5, None


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Any, host: Any) -> Any:
        return value * host.scale

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 5, None


def _scaled(x: Any, host: Host) -> Any:
    host.scale += 1
    return Scaled.apply(x, host)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze", lambda g, _: g.forward])
def test_forward_reads_what_the_frame_wrote(backend: Any) -> None:
    x, host = torch.ones(2, requires_grad=True), Host()
    compiled = braze.compile(_scaled, backend=backend)
    assert [compiled(x, host)[0].item() for _ in range(3)] == [2, 3, 4]
    compiled(x, host).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [5, 5]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "braze", lambda g, _: g.forward])
def test_forward_writes_once_a_call(backend: Any) -> None:
    x, host = torch.ones(2, requires_grad=True), Host()
    host.log = []
    compiled = braze.compile(lambda x, host: Logged.apply(x, host)[0], backend=backend)
    for _ in range(3):
        compiled(x, host)
    assert host.log == ["forward"] * 3


def test_graph_of_torch_calls_holds_a_forward_that_writes_nothing() -> None:
    x, host = torch.ones(2, requires_grad=True), Host()
    with recorded() as journal:
        compiled = braze.compile(lambda x, host: Scaled.apply(x, host) + 1, backend="eager")
    compiled(x, host)
    assert [record.graph_break for record in journal.records()] == [None]


def test_number_of_a_result_is_that_of_its_operation() -> None:
    weight = torch.ones(3, requires_grad=True)

    def step(x: Any) -> Any:
        made = x * weight
        return [
            *[one.output_nr for one in (made, *made.unbind(0), *made.sort(), *made.split(1, 1))],
            *[one.output_nr for one in checkpoint(_two, made, use_reentrant=False)],
            *[one.output_nr for one in torch.std_mean(made, 0)],
            made.detach().output_nr,
        ]

    x = torch.arange(6.0).reshape(2, 3)
    compiled = braze.compile(step, backend="aot_eager", fullgraph=True)
    assert compiled(x) == step(x)
    assert max(step(x)) == 2


def test_number_of_a_result_of_a_reentrant_checkpoint() -> None:
    weight = torch.ones(3, requires_grad=True)

    def step(x: Any) -> Any:
        return [one.output_nr for one in checkpoint(_two, x * weight, use_reentrant=True)]

    assert braze.compile(step, backend="eager")(torch.ones(3)) == step(torch.ones(3)) == [0, 1]


def _two(value: Any) -> Any:
    return value.sin(), value.cos()
