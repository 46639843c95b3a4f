"""What the backward of a bag of embeddings reads has the shapes that the CPU's kernel gives it."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.tracing import Tracer

OPERATORS = [torch.ops.aten._embedding_bag, torch.ops.aten._embedding_bag_forward_only]
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
MODES = {"sum": 0, "mean": 1, "max": 2}


def _call(op: Any, mode: int, last: bool, padding: int, *given: Any) -> Any:
    weight, words, starts, *weights = given
    return op(weight, words, starts, False, mode, False, *(weights or [None]), last, padding)


def _facts(results: Any) -> list[Any]:
    return [(tuple(r.shape), r.stride(), r.dtype) for r in results]


@pytest.mark.parametrize("op", OPERATORS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", MODES)
def test_every_form(mode: str, dtype: torch.dtype, op: Any) -> None:
    truths = [(False, True)] * 3
    for last, is_weighted, lies_across, padding, index in itertools.product(
        *truths, (-1, 0), (torch.int64, torch.int32)
    ):
        if is_weighted and mode != "sum":
            continue
        weight = (
            torch.randn(3, 7, dtype=dtype).t() if lies_across else torch.randn(7, 3, dtype=dtype)
        )
        words = torch.tensor([0, 1, 1, 2, 3, 5], dtype=index)
        starts = torch.tensor([0, 2, 6] if last else [0, 2], dtype=index)
        call = functools.partial(_call, op, MODES[mode], last, padding)
        given = [weight, words, starts] + ([torch.ones(6, dtype=dtype)] if is_weighted else [])

        tracer = Tracer(replayable=False)
        with torch.no_grad(), tracer:
            found = _facts(call(*[tracer.add_input(x) for x in given]))
        assert found == _facts(call(*given)), (last, is_weighted, lies_across, padding, index)


@pytest.mark.parametrize("mode", MODES)
def test_sizes_change(mode: str) -> None:
    def bags(weight: torch.Tensor, words: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        return F.embedding_bag(words, weight, starts, mode=mode, include_last_offset=True) * 2

    compiled = braze.compile(bags, fullgraph=True, dynamic=True)
    for words, starts in (([0, 1, 1, 2], [0, 2, 4]), ([0, 1, 1, 2, 3, 5], [0, 1, 2, 6])):
        made = []
        for one in (bags, compiled):
            weight = torch.arange(21.0).view(7, 3).requires_grad_()
            result = one(weight, torch.tensor(words), torch.tensor(starts))
            result.square().sum().backward()
            made.append((result.detach(), weight.grad))
        torch.testing.assert_close(*made)
