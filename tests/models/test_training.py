"""The eight models in training mode: losses, gradients and buffers of two steps as eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from benchmarks.models import EIGHT, Size, build, find

import braze


@pytest.mark.parametrize("name", EIGHT)
def test_two_steps(name: str) -> None:
    case = build(find(name), size=Size.TINY)
    model = case.model.train()
    twin = copy.deepcopy(model)
    compiled = braze.compile(twin)
    for step in range(2):
        losses = []
        for trained in (model, compiled):
            arguments, keywords = case.arguments(step)
            torch.manual_seed(step)
            loss = case.loss(trained(*arguments, **keywords))
            loss.backward()
            losses.append(loss.detach())
        torch.testing.assert_close(losses[1], losses[0])
    expected = dict(model.named_parameters())
    for parameter_name, parameter in twin.named_parameters():
        reference = expected[parameter_name].grad
        if reference is None:
            assert parameter.grad is None, parameter_name
        else:
            torch.testing.assert_close(parameter.grad, reference, msg=parameter_name)
    for (buffer_name, buffer), (_, reference) in zip(
        twin.named_buffers(), model.named_buffers(), strict=True
    ):
        torch.testing.assert_close(buffer, reference, msg=buffer_name)
