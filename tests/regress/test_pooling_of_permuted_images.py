"""Pooling channels-last images to one element gives the result its strides by `as_strided_`; with a
symbolic batch the check that those stay inside the memory tied the batch to its number."""

from __future__ import annotations

import torch
from torch.nn import functional

import braze
from tests.recorded import recorded


def test_a_batch_that_varies_compiles_once_more() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), 1)

    with recorded() as journal:
        compiled = braze.compile(program, backend="aot_eager")
    for batch in (5, 7, 3, 9):
        x = torch.randn(batch, 6, 6, 8)
        found, expected = compiled(x), program(x)
        assert torch.equal(found, expected)
        assert found.stride() == expected.stride()
    assert len(journal.records()) == 2
