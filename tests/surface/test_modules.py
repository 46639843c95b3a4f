"""A part of the sweep over `nn.Module`; `python -m tests.surface.modules` asks all questions."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

import braze
from tests.surface.modules import KINDS, questions, sweep
from tests.surface.tensors import part_of

PART = os.environ.get("BRAZE_SURFACE_PART", "7/70")


def test_sampled_questions_to_modules_agree_with_eager() -> None:
    tally = sweep(part_of(questions(), PART))
    assert not tally.differences, "\n".join(map(str, tally.differences))
    assert tally.asked > 100
    assert tally.graphs > 20


def test_text_of_what_is_made_here_is_guarded() -> None:
    """`object.__str__` runs the `__repr__` of modules, which reads those that were passed in."""

    def f(module: nn.Module, x: torch.Tensor) -> Any:
        return nn.Sequential(module).__str__(), x + 1

    compiled = braze.compile(f, backend="eager")
    for module in (nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.Linear(3, 3)):
        assert compiled(module, torch.ones(2))[0] == f(module, torch.ones(2))[0]


def test_kinds_and_questions_are_many() -> None:
    assert len(KINDS) > 30
    assert len(list(questions())) > 200
