"""Dropout that drops nothing gives its argument itself, also where sizes vary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import braze

DROPOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "functional": lambda x: functional.dropout(x, 0.5, False),
    "torch": lambda x: torch.dropout(x, 0.5, False),
    "operator": lambda x: torch.ops.aten.dropout.default(x, 0.5, False),
    "of no probability": lambda x: functional.dropout(x, 0.0, True),
}


@pytest.mark.parametrize("name", DROPOUTS)
def test_a_write_to_the_result(name: str) -> None:
    dropout = DROPOUTS[name]

    def run(x: torch.Tensor) -> None:
        result = dropout(x)
        result += x.shape[0]

    compiled = braze.compile(run)
    for size in (3, 4, 7):
        x, y = torch.ones(size), torch.ones(size)
        compiled(x)
        run(y)
        assert torch.equal(x, y)
