"""Results lie in memory as eager's do: a part of memory_sweep."""

from __future__ import annotations

import pytest

from tests.differential.memory_sweep import LAYOUTS, listed, swept
from tests.differential.op_sweep import operators

_NAMED = ("isin", "nn.functional.logsigmoid", "nn.functional.one_hot", "empty_strided", "transpose")
_PART = [name for name in (*_NAMED, *[*operators()][::40]) if name in operators()]


@pytest.mark.parametrize("name", _PART)
def test_results_lie_as_in_eager(name: str) -> None:
    known = listed()
    assert [key for key, kinds in swept([name]).items() if kinds - known.get(key, set())] == []


def test_known_differences_name_operators() -> None:
    table = operators()
    for key in listed():
        name, layout = key.rsplit(" ", 1)
        assert name in table and layout in LAYOUTS
