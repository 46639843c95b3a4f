"""A part of the programs that are the same by algebra; more of them:
`python -m tests.differential.equivalent_programs` or BRAZE_FUZZ_PROGRAMS set."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import pytest

from braze.lower.operators.views import lower_slice
from braze.lower.rules import RULES
from tests.differential.equivalent_programs import difference

COUNT = int(os.environ.get("BRAZE_FUZZ_PROGRAMS", "12"))
FIRST = int(os.environ.get("BRAZE_FUZZ_SEED", "0"))


def test_other_forms_give_the_same_bytes() -> None:
    more = 0
    for seed in range(FIRST, FIRST + COUNT):
        found, nodes = difference(seed, 2)
        assert not found
        more += nodes
    assert more > 3 * COUNT  # else nothing was rewritten


def test_a_wrong_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a slice begins where the whole does."""

    def from_the_start(
        call: Any, self: Any, dim: int = 0, start: Any = None, *rest: Any, **named: Any
    ) -> Any:
        return lower_slice(call, self, dim, 0, *rest, **named)

    row = RULES["aten.slice.Tensor"]
    monkeypatch.setitem(RULES, "aten.slice.Tensor", dataclasses.replace(row, rule=from_the_start))
    assert any(difference(seed, 2)[0] for seed in range(FIRST, FIRST + COUNT))
