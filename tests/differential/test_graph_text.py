"""The text of every operator's graph is Python that computes what eager computes."""

from __future__ import annotations

import os

import pytest
import torch

from tests.differential.graph_text import check_text
from tests.differential.op_sweep import operators
from tests.shares import due_today

PARTS = 8
SAMPLES = int(os.environ.get("BRAZE_SWEEP_SAMPLES", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("part", due_today(range(PARTS), 4))
def test_text_computes_as_eager(part: int) -> None:
    graphs, failures = 0, []
    for name, op in sorted(operators().items())[part::PARTS]:
        dtype = next((d for d in (torch.float32, torch.int64) if d in op.dtypes), None)
        if dtype is None:
            continue
        try:
            graphs += check_text(op, dtype, SAMPLES)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    assert not failures, "\n".join(failures)
    assert graphs > 50
