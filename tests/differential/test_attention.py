"""Random programs that write attention out, eager and compiled: in inference, with a backward, and
as whole steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import braze
from braze.rewrite.fuse_attention import Worth, fuse_attention
from braze.trace import Journal
from tests.differential.attention import AttentionProgram, random_program

PROGRAMS = int(os.environ.get("BRAZE_ATTENTION_PROGRAMS", "16"))


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    always = Worth(frozenset({torch.float32}), count=1, trained=1)
    monkeypatch.setitem(sys.modules[fuse_attention.__module__].WORTH, "cpu", always)


def _step(program: Any) -> Any:
    """Both in one function."""

    def step(*inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        result = program(*inputs)
        tangent = torch.linspace(-1, 1, result.numel(), dtype=result.dtype).view(result.shape)
        return [result.detach(), *torch.autograd.grad((result * tangent).sum(), inputs[:3])]

    return step


def _called(program: Any, kind: str, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    leaves = [x.detach().requires_grad_(kind != "inference") for x in inputs[:3]]
    if kind == "step":
        return list(program(*leaves, *inputs[3:]))
    if kind == "training":
        return list(_step(program)(*leaves, *inputs[3:]))
    with torch.no_grad():
        return [program(*leaves, *inputs[3:])]


def _check(program: AttentionProgram, kind: str) -> None:
    inputs = program.inputs()
    wide = [x.double() if x.is_floating_point() else x for x in inputs]
    whole = _step(program) if kind == "step" else program
    wanted, exact = _called(whole, kind, inputs), _called(whole, kind, wide)
    found = _called(braze.compile(whole, dynamic=False), kind, inputs)
    for ours, eager, reference in zip(found, wanted, exact, strict=True):
        assert (ours.shape, ours.dtype) == (eager.shape, eager.dtype)
        assert torch.equal(ours.isnan(), eager.isnan()), program
        known = ~(eager.isnan() | reference.isnan())
        error, allowed = ((x.double() - reference)[known].abs() for x in (ours, eager))
        if known.any() and not torch.allclose(ours, eager, 1e-4, 2e-5, equal_nan=True):
            assert error.max() <= 2 * allowed.max() + 1e-6, program
    assert found[0].stride() == wanted[0].stride()


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_random_programs(seed: int) -> None:
    for kind in ("inference", "training", "step"):
        _check(random_program(seed), kind)


def test_many_are_calls_of_the_library(journal: Journal) -> None:
    for seed in range(12):
        with torch.no_grad():
            program = random_program(seed)
            braze.compile(program, dynamic=False)(*program.inputs())
    calls = [op for record in journal.records() for op in record.extern_ops if "attention" in op]
    assert len(calls) >= 4
