"""`pack_padded_sequence` made the whole frame eager: its meta kernel refuses fake tensors for
lengths,
and a packed LSTM was taken for a plain one. Both are breaks; what is around them is compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import braze
from braze.trace import Journal

CELLS = [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN]


class Tagger(torch.nn.Module):
    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(4, 4)
        self.cell = cell(4, 5, batch_first=True, bidirectional=True)
        self.score = torch.nn.Linear(10, 2)

    def forward(self, x: torch.Tensor, lengths: Any) -> tuple[torch.Tensor, torch.Tensor]:
        rows = torch.relu(self.embed(x))
        packed = pack_padded_sequence(rows, lengths, batch_first=True, enforce_sorted=False)
        padded, kept = pad_packed_sequence(self.cell(packed)[0], batch_first=True)
        return torch.sigmoid(self.score(padded)), kept


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.__name__)
def test_what_is_around_a_packed_sequence_is_compiled(cell: Any, journal: Journal) -> None:
    torch.manual_seed(0)
    model = Tagger(cell)
    compiled = braze.compile(model)
    lists: list[Any] = [[6, 3, 2], [5, 6, 1], torch.tensor([6, 6, 4]), torch.tensor([1, 2, 6])]
    for lengths in lists:
        x = torch.rand(3, 6, 4)
        scores, kept = compiled(x, lengths)
        expected, expected_kept = model(x, lengths)
        torch.testing.assert_close(scores, expected)
        assert torch.equal(kept, expected_kept)
        found = torch.autograd.grad(scores.sum(), list(model.parameters()))
        wanted = torch.autograd.grad(expected.sum(), list(model.parameters()))
        torch.testing.assert_close(found, wanted)
    records = journal.records()
    assert not [record.raised for record in records if record.raised]
    compiled_ops = {op for record in records if record.outcome == "graph" for op in record.ops}
    assert {"aten.relu.default", "aten.sigmoid.default"} <= compiled_ops
