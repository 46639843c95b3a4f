"""What a trace of a backward leaves behind."""

from __future__ import annotations

import gc

import torch

import braze
from braze.tracing.fake_tensor import TracedTensor


def saves_its_result(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).exp().relu().detach()


def test_no_stand_in_stays_alive_where_no_gradient_is_asked_for() -> None:
    gc.collect()
    before = {id(o) for o in gc.get_objects() if type(o) is TracedTensor}
    braze.compile(saves_its_result, backend="aot_eager")(torch.ones(3, requires_grad=True))
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o) is TracedTensor and id(o) not in before]
