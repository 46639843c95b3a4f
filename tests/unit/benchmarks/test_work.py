"""What is called: forward, forward and backward, a whole step."""

from __future__ import annotations

import pytest
import torch
from benchmarks.accuracy import float64_outputs
from benchmarks.models import Case
from benchmarks.work import WORKS
from torch import nn


@pytest.fixture
def case() -> Case:
    torch.manual_seed(0)
    x = torch.randn(5, 3)
    return Case(nn.Linear(3, 2), lambda seed: ((x + seed,), {}), lambda output: output.sum())


def test_backward_gives_the_loss_and_every_gradient(case):
    work = WORKS["backward"]
    own = work.case_for(case)
    (args, kwargs) = case.arguments(0)
    loss, weight, bias = work.make(own, lambda model: model)(*args, **kwargs)
    assert not loss.requires_grad
    assert torch.equal(bias, torch.full((2,), 5.0))
    assert torch.allclose(weight, args[0].sum(0).expand(2, 3))
    assert case.model.weight.grad is None


def test_a_step_compiles_one_function_and_moves_the_parameters_of_its_own_model(case):
    compiled = []

    def compile_(function):
        compiled.append(function)
        return function

    work = WORKS["step"]
    own = work.case_for(case)
    before = case.model.weight.clone()
    (x,) = case.arguments(0)[0]
    work.make(own, compile_)(x)
    assert len(compiled) == 1
    assert torch.equal(case.model.weight, before)
    moved = before * (1 - 1e-5) - 1e-3 * x.sum(0).sign()  # AdamW's first step
    assert torch.allclose(own.model.weight, moved, atol=1e-6)


@pytest.mark.parametrize("name", WORKS)
def test_the_float64_run_does_what_the_systems_do(name, case):
    work = WORKS[name]
    own = work.case_for(case)
    call = work.make(own, lambda function: function)
    outputs = [call(*case.arguments(seed)[0]) for seed in (0, 1)][-1]
    found = outputs[0] if name == "backward" else outputs
    exact = float64_outputs(case, 1, work)[0]
    assert exact.dtype == torch.float64
    assert torch.allclose(found.double(), exact, atol=1e-5)
