"""Attention's backward kernels by Triton's interpreter, beside eager; float64 is the judge.

Every function of the score is in a case; `BRAZE_ALL_ATTENTION=1` runs all, under every mask.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

from braze.ir.kernels.schedule import ExternStep, Kernel
from tests.shares import due_today
from tests.unit.codegen.attention_programs import (
    MASKS,
    SCORES,
    SHAPES,
    assert_judged,
    attention,
    exactly,
    operands,
)
from tests.unit.codegen.attention_training import Trained, train
from tests.unit.codegen.triton_running import MARKS

pytestmark = MARKS


def _cases() -> list[Any]:
    turns = itertools.cycle(itertools.product(("odd", "grouped"), (torch.float32, torch.bfloat16)))
    scores = itertools.cycle(SCORES)
    pairs = [(next(scores), mask) for mask in ("causal", "window", "prefix", "documents", "padded")]
    if "BRAZE_ALL_ATTENTION" in os.environ:
        pairs = [*itertools.product(SCORES, MASKS)]
    return due_today([pytest.param(s, m, *next(turns), id=f"{s}-{m}") for s, m in pairs], 2)


@pytest.mark.parametrize(("score", "mask", "shape", "dtype"), _cases())
def test_backward_has_no_scores(score: str, mask: str, shape: str, dtype: torch.dtype) -> None:
    attend, given = attention(SCORES[score], MASKS[mask]), operands(shape, dtype)
    _check(attend, given, *SHAPES[shape][3:5])


def test_logarithms_of_sums_have_gradients() -> None:
    torch.manual_seed(2)
    given = [torch.randn(2, 2, 96, 16) for _ in range(3)]
    hidden = torch.arange(96) > torch.arange(96)[:, None]

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor) -> Any:
        scores = torch.tanh(q @ k.transpose(-2, -1)).masked_fill(hidden, -math.inf)
        most = scores.amax(-1, keepdim=True).detach()
        sums = torch.exp(scores - most).sum(-1, keepdim=True)
        return torch.softmax(scores, -1) @ v, sums.log() + most

    _check(attend, [*given, hidden], 96, 96)


def test_only_what_is_asked_for_is_computed() -> None:
    given = operands("square", torch.float32)
    given[1].requires_grad_()
    attend = attention(None, MASKS["causal"])
    result = attend(*given)
    trained = train(attend, given, [torch.ones_like(result)])
    (kernel,) = trained.kernels
    assert len(kernel.phases) == 1
    (expected,) = torch.autograd.grad(result, given[1:2], torch.ones_like(result))
    torch.testing.assert_close(trained.gradients, [expected])


def test_hidden_tiles_are_never_read() -> None:
    """Where a mask hides whole tiles of keys, no number there reaches a gradient."""
    given = operands("grouped", torch.float32)
    given[6] = torch.tensor([40, 60, 30])  # of 200 keys, in tiles of 32
    attend = attention(None, MASKS["padded"])
    trained = _trained(attend, given)
    with torch.no_grad():
        given[1][:, :, 64:] = torch.nan
    again = _trained(attend, given)
    torch.testing.assert_close(again.gradients[0], trained.gradients[0])


def test_functions_by_hand_take_the_kernels() -> None:
    """A plain softmax of a cap and an added bias that depends on places."""
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 2, 96, 16) for _ in range(3))

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = 30 * torch.tanh(q @ k.transpose(-2, -1) / math.sqrt(16) / 30)
        places = torch.arange(96)
        scores = scores - 0.1 * (places[:, None] - places).abs()
        return torch.softmax(scores.masked_fill(places > places[:, None], -math.inf), -1) @ v

    _check(attend, [q, k, v], 96, 96)


# --- private -------------------------------------------------------------------------------------


def _check(attend: Callable[..., Any], given: list[torch.Tensor], length: int, count: int) -> None:
    """One kernel forward, two backward, nothing as large as scores between them, and gradients."""
    trained = _trained(attend, given)
    for plan, kernels in zip(trained.plans, (1, 2), strict=True):
        found = [s for s in plan.steps if isinstance(s, Kernel) and s.attention is not None]
        assert len(found) == kernels, plan.steps
        assert not [s for s in plan.steps if isinstance(s, ExternStep) and "mm" in str(s.call.op)]
        made = {b for s in plan.steps if isinstance(s, Kernel) for b in s.memory}
        assert all(b.shape[-2:] != (length, count) for b in made - {*plan.inputs})
    assert all(value.shape[-2:] != (length, count) for value in trained.saved)
    _assert_gradients(attend, given, trained)


def _trained(attend: Callable[..., Any], given: list[torch.Tensor]) -> Trained:
    for tensor in given[:3]:
        tensor.requires_grad_()
    return train(attend, given, _tangents(attend, given))


def _tangents(attend: Callable[..., Any], given: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(3)
    results = attend(*given)
    results = results if isinstance(results, tuple) else (results,)
    return [torch.randn_like(result) for result in results]


def _assert_gradients(
    attend: Callable[..., Any], given: list[torch.Tensor], trained: Trained
) -> None:
    tangents = _tangents(attend, given)
    eager = torch.autograd.grad(attend(*given), given[:3], tangents)
    wide = [x.detach() for x in exactly(given)]
    for tensor in wide[:3]:
        tensor.requires_grad_()
    exact = torch.autograd.grad(attend(*wide), wide[:3], [t.double() for t in tangents])
    for mine, theirs, right in zip(trained.gradients, eager, exact, strict=True):
        if right.isfinite().all() and right.abs().max():
            _assert_near(mine, theirs, right)


def _assert_near(mine: torch.Tensor, theirs: torch.Tensor, right: torch.Tensor) -> None:
    """Weights are rounded to the dtype before they are multiplied, which eager does for some."""
    if theirs.dtype == torch.float32:
        assert_judged(mine, theirs, right)
        return
    step = torch.finfo(theirs.dtype).eps
    error = (mine.double() - right).abs().max()
    assert error <= 2 * (theirs.double() - right).abs().max() + step * right.abs().max()
