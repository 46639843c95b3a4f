"""What a program asks of a card: its capability and its name are facts, and break no graph.

Libraries choose among kernels by them in each layer (transformers' experts)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import braze
from tests.recorded import recorded


@pytest.mark.parametrize("device", [None, 0, "cuda:0", "cuda", torch.device("cuda", 1)], ids=str)
def test_facts_of_a_card_are_in_the_graph(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(major=9, minor=1, name="a card")

    def properties(device: Any = None) -> Any:
        return card

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        made = x.sin()
        if torch.cuda.get_device_capability(device) >= (8, 0):
            made = made * torch.cuda.get_device_capability(device=device)[1] + 5
        return made, torch.cuda.get_device_name(device)

    x = torch.rand(3)
    with recorded() as journal:
        found, name = braze.compile(program, fullgraph=True)(x)
    torch.testing.assert_close(found, x.sin() + 5)
    assert name == "a card" and len(journal.records()) == 1


def test_without_a_card_the_program_meets_the_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card")

    def program(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        made = x.sin()
        try:
            torch.cuda.get_device_capability(0)
        except (AssertionError, RuntimeError) as error:
            return made.cos(), type(error).__name__
        return made, ""

    x = torch.rand(3)
    assert braze.compile(program, fullgraph=True)(x)[1] == program(x)[1] != ""
