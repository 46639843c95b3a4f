"""Scores of attention computed again in the backward: what is kept, and what is refused."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from braze.autograd import partition, trace_joint
from braze.ir.graphs.joint_graph import ForwardBackward, JointGraph, SavedInput
from braze.ir.graphs.run_graph import run_graph
from braze.ir.graphs.verify_joint_graph import verify_pair
from braze.rewrite.recompute_attention import WHERE_WORTH, WhereWorth, recompute_attention
from braze.tracing import Tracer

_ANYWHERE = WhereWorth(frozenset({"cpu"}), frozenset({torch.float32}), 0)


def _cap(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.tanh(q @ k.transpose(-2, -1)), -1) @ v


def _bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.transpose(-2, -1) + bias, -1) @ v


def _dropout(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> Any:
    return F.dropout(torch.softmax(q @ k.transpose(-2, -1), -1), 0.5) @ v


def _probabilities(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> Any:
    weights = torch.softmax(torch.tanh(q @ k.transpose(-2, -1)), -1)
    return weights @ v, weights


def _across(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: torch.Tensor) -> Any:
    return torch.softmax(q @ k.transpose(-2, -1), -2) @ v


def _operands() -> list[torch.Tensor]:
    torch.manual_seed(4)
    shapes = ((2, 3, 20, 8), (2, 3, 24, 8), (2, 3, 24, 12), (3, 1, 24))
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def _joint(function: Callable[..., Any], given: list[torch.Tensor]) -> JointGraph:
    tracer = Tracer()
    with tracer:
        made = function(*[tracer.add_input(x) for x in given])
    trace = tracer.finish(made if isinstance(made, tuple) else (made,))
    return trace_joint(trace.graph)


def _gradients(pair: ForwardBackward, given: list[torch.Tensor], tangents: list[Any]) -> list[Any]:
    results = run_graph(pair.forward, [x.detach() for x in given])
    saved = [
        given[one.index].detach() if isinstance(one, SavedInput) else results[one.index]
        for one in pair.saved
    ]
    found = run_graph(pair.backward.graph, [*saved, *tangents])
    return [found[n] for n in pair.backward.gradients if n is not None]


def test_no_scores_are_kept() -> None:
    given = _operands()[:3]
    joint = recompute_attention(_joint(_cap, given), _ANYWHERE)
    pair = partition(joint)
    verify_pair(joint, pair)
    kept = [value.type for value in pair.saved_values]
    assert all(tuple(kind.shape[-2:]) != (20, 24) for kind in kept)  # type: ignore[union-attr]
    tangent = torch.randn(2, 3, 20, 12)
    expected = torch.autograd.grad(_cap(*given), given, tangent)
    torch.testing.assert_close(_gradients(pair, given, [tangent]), [*expected])


def test_rows_that_see_nothing_have_no_gradient() -> None:
    given = [*_operands()[:3], torch.arange(20).view(20, 1).expand(20, 24) == 3]

    def attend(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor
    ) -> torch.Tensor:
        scores = (q @ k.transpose(-2, -1)).masked_fill(hidden, -math.inf)
        return torch._safe_softmax(scores, -1) @ v

    pair = partition(recompute_attention(_joint(attend, given), _ANYWHERE))
    tangent = torch.randn(2, 3, 20, 12)
    expected = torch.autograd.grad(attend(*given), given[:3], tangent)
    torch.testing.assert_close(_gradients(pair, given, [tangent]), [*expected])


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (_bias, "its gradient is wanted for more than queries and keys"),
        (_dropout, "its gradient is no product"),
        (_probabilities, "its gradient is no product"),
        (_across, "it is no softmax of rows"),
    ],
)
def test_stays_as_it_is(
    function: Callable[..., Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    joint = _joint(function, _operands())
    with caplog.at_level(logging.INFO, "braze.fusion"):
        assert recompute_attention(joint, _ANYWHERE) is joint
    assert [text for text in caplog.messages if reason in text], caplog.messages


@pytest.mark.parametrize(
    "worth",
    [WHERE_WORTH, replace(_ANYWHERE, fewest=481), replace(_ANYWHERE, dtypes=frozenset())],
)
def test_does_nothing_where_it_does_not_pay(worth: WhereWorth) -> None:
    joint = _joint(_cap, _operands()[:3])
    assert recompute_attention(joint, worth) is joint
    if worth.fewest == 481:
        assert recompute_attention(joint, replace(worth, fewest=480)) is not joint
