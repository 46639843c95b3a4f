"""C++ code that reads a tensor's memory past the dispatcher: a fake tensor of symbolic sizes gave
it a null pointer, and a packed GRU at a second number of steps ended the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

import braze
from tests.recorded import recorded


def _packed(layers: nn.Module) -> Callable[..., Any]:
    def program(x: torch.Tensor, lengths: torch.Tensor) -> Any:
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        rows, state = layers(packed)
        return *rnn.pad_packed_sequence(rows, batch_first=True, padding_value=-1.0), state

    return program


def _sequences(*lengths: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(len(lengths), 5, 3), torch.tensor(lengths)


def _losses(*lengths: int) -> tuple[torch.Tensor, ...]:
    count = len(lengths)
    scores = torch.randn(8, count, 5).log_softmax(-1)
    targets = torch.randint(1, 5, (count, 3))
    return scores, targets, torch.full((count,), 8), torch.tensor(lengths)


def _pieces(*ends: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(9, 2), torch.tensor(ends)


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    **{kind: (_packed(getattr(nn, kind)(3, 4, 2)), _sequences) for kind in ("GRU", "LSTM", "RNN")},
    "RNN relu": (_packed(nn.RNN(3, 4, nonlinearity="relu", bidirectional=True)), _sequences),
    "ctc_loss": (nn.functional.ctc_loss, _losses),
    "tensor_split": (lambda x, ends: torch.tensor_split(x * 2, ends), _pieces),
    "tensor_split by name": (
        lambda x, ends: (x * 2).tensor_split(tensor_indices_or_sections=ends),
        _pieces,
    ),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_in_memory_are_not_read_of_fake_tensors(name: str, dynamic: bool | None) -> None:
    program, inputs = PROGRAMS[name]
    with recorded() as journal:
        compiled = braze.compile(lambda *given: program(*given), dynamic=dynamic)
        for lengths in ([3, 2], [1, 1, 1], [3, 1, 2, 3], [2]):
            given = inputs(*lengths)
            torch.testing.assert_close(compiled(*given), program(*given))
    assert not [record.fallbacks for record in journal.records() if record.fallbacks]
    codes = {why.code for why in journal.left_to_eager()}
    assert "internal-error" not in codes, journal.left_to_eager()
