"""Guards as lines of text."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from braze.ir.guard import ABSENT, Guard, GuardKind, TensorFacts
from braze.ir.origin import Origin
from braze.ir.source import LocalSource
from braze.report.guard_text import format_guard

X = LocalSource("x")
FACTS = TensorFacts(torch.Tensor, torch.float32, torch.device("cpu"), True, (None, 3), (3, 1))


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        (
            Guard(X, GuardKind.TENSOR_MATCH, FACTS, Origin("model.py", 7)),
            "model.py:7 TENSOR_MATCH L['x']: Tensor f32[?, 3][3, 1]cpu, requires_grad",
        ),
        (Guard(X, GuardKind.EQUALS_MATCH, 3), "EQUALS_MATCH L['x']: 3"),
        (Guard(X, GuardKind.TYPE_MATCH, torch.nn.Linear), "TYPE_MATCH L['x']: Linear"),
        (Guard(X, GuardKind.ID_MATCH, torch.nn.Linear(2, 2)), "ID_MATCH L['x']: Linear"),
        (
            Guard(X, GuardKind.NAMESPACE, (("a", len), ("b", ABSENT))),
            "NAMESPACE L['x']: a, b",
        ),
        (Guard(X, GuardKind.DICT_LACKS, frozenset("ba")), "DICT_LACKS L['x']: a, b"),
        (
            Guard(None, GuardKind.FUNCTIONS, ((torch.nn.Linear.forward, None, None, None),)),
            "FUNCTIONS: Linear.forward",
        ),
        (Guard(X, GuardKind.EQUALS_MATCH, (1, 2)), "EQUALS_MATCH L['x']: (1, 2)"),
        (Guard(X, GuardKind.EQUALS_MATCH, ()), "EQUALS_MATCH L['x']: ()"),
        (Guard(None, GuardKind.NO_HOOKS, None), "NO_HOOKS"),
    ],
)
def test_guard_text(guard: Guard, text: str) -> None:
    assert format_guard(guard) == text


def test_long_values_are_cut() -> None:
    long: Any = "x" * 1000
    assert len(format_guard(Guard(X, GuardKind.EQUALS_MATCH, long))) < 200
    names = tuple((f"n{i}", None) for i in range(50))
    assert format_guard(Guard(X, GuardKind.NAMESPACE, names)).endswith("and 44 more")
