"""Indices out of range in a dimension of one element that a view adds or drops: an error, as in
eager. All coordinates there are zero, so that the check went with the coordinate."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

import braze
from tests.differential.changed_sizes import without_kernels

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

PROGRAMS: dict[str, Program] = {
    "index of a view": lambda x, i: x.unsqueeze(0)[i],
    "index": lambda x, i: (x + 1)[None][i],
    "index_select": lambda x, i: (x + 1)[None].index_select(0, i),
    "gather": lambda x, i: torch.gather((x + 1).unsqueeze(1), 1, i.unsqueeze(1)),
    "take": lambda x, i: torch.take(x[:1].unsqueeze(1), i),
    "embedding": lambda x, i: F.embedding(i, (x + 1).unsqueeze(0)),
    "nll_loss": lambda x, i: F.nll_loss((x + 1).unsqueeze(1), i, reduction="none"),
    "expanded": lambda x, i: x.unsqueeze(0).expand(4, 3)[None][i],
}


@pytest.mark.parametrize("name", list(PROGRAMS))
@pytest.mark.parametrize("kernels", [False, True], ids=["evaluated", "kernels"])
def test_index_out_of_range_raises(name: str, kernels: bool) -> None:
    if kernels and name not in ("index of a view", "nll_loss"):
        pytest.skip("the same loops as evaluated")
    function, x = PROGRAMS[name], torch.randn(3)
    inside, outside = torch.tensor([0, 0, 0]), torch.tensor([0, 2, 0])
    with nullcontext() if kernels else without_kernels():
        compiled = braze.compile(function, fullgraph=True)
        torch.testing.assert_close(compiled(x, inside), function(x, inside))
        with pytest.raises(Exception) as eager:
            function(x, outside)
        with pytest.raises(eager.type):
            compiled(x, outside)
