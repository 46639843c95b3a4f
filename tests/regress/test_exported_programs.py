"""What `torch.export` gives broke at the checks of its inputs, and had no graph at all."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import braze
from tests.recorded import recorded


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, *, scale: Any = None) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        with torch.no_grad():
            y = x * 2
        result = self.linear(x) + y
        return {"result": result if scale is None else result * scale}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("keywords", [{}, {"scale": torch.full((4,), 2.0)}])
def test_one_graph(keywords: dict[str, Any], dynamic: bool) -> None:
    x = torch.randn(2, 4)
    sizes = {"x": {0: Dim("n")}, **dict.fromkeys(keywords)} if dynamic else None
    program = torch.export.export(Model(), (x,), keywords, dynamic_shapes=sizes)
    with recorded() as journal:
        compiled, eager = braze.compile(program.module(), fullgraph=True), program.module()
        for count in (2, 3, 5) if dynamic else (2,):
            x = torch.randn(count, 4)
            got, wanted = compiled(x, **keywords), eager(x, **keywords)
            torch.testing.assert_close(got, wanted)
            torch.testing.assert_close(compiled.calls, eager.calls)
    outcomes = [record.outcome for record in journal.records()]
    assert outcomes == ["graph"] * (2 if dynamic else 1)
    assert all(record.counters["kernels"] > 0 for record in journal.records())


def test_inputs_are_checked() -> None:
    module = torch.export.export(nn.Linear(4, 4), (torch.randn(2, 4),)).module()
    compiled = braze.compile(module)
    compiled(torch.randn(2, 4))
    for wrong in (torch.randn(2, 5), torch.randn(3, 4)):
        with pytest.raises(Exception) as eagers:
            module(wrong)
        with pytest.raises(type(eagers.value)) as ours:
            compiled(wrong)
        assert str(ours.value) == str(eagers.value)
