"""Generators get the states back that they had, each device its own."""

from __future__ import annotations

import pytest
import torch

from braze.ir.graphs.print_graph import parse_graph
from braze.ir.graphs.random_ops import drawing_devices
from braze.runtime.autograd.rng_state import RandomStates

CPU, FIRST = torch.device("cpu"), torch.device("cuda", 1)
TEXT = """graph {
  input %0: f32[4][1]cuda:1
  input %1: f32[4][1]cpu
  %2: f32[4][1]cuda:1 = aten.bernoulli.default(%0)
  %3: f32[4][1]cuda:1 = aten.rand_like.default(%2)
  %4: f32[4][1]cpu = aten.neg.default(%1)
  output %3
  output %4
}
"""


def test_devices_that_a_graph_draws_on() -> None:
    assert drawing_devices(parse_graph(TEXT)) == (FIRST,)
    both = TEXT.replace("aten.neg.default(%1)", "aten.rand_like.default(%1)")
    assert drawing_devices(parse_graph(both)) == (FIRST, CPU)
    calm = TEXT.replace("bernoulli", "neg").replace("rand_like", "neg")
    assert drawing_devices(parse_graph(calm)) == ()


def test_the_cpu_draws_the_same_again() -> None:
    states = RandomStates([CPU])
    first = torch.rand(5)
    states.restore()
    assert torch.equal(torch.rand(5), first)


@pytest.mark.parametrize("captures", [False, True])
def test_each_device_has_its_own(monkeypatch: pytest.MonkeyPatch, captures: bool) -> None:
    held = {0: torch.tensor(10), 1: torch.tensor(20)}
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captures)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: held[device.index])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: held.update({device.index: state})
    )
    states = RandomStates([CPU, FIRST])
    before = torch.rand(1)
    held[0], held[1] = torch.tensor(11), torch.tensor(21)
    states.restore()
    assert torch.equal(torch.rand(1), before)
    assert held == ({0: 11, 1: 21} if captures else {0: 11, 1: 20})
