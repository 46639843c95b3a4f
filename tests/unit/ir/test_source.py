"""Sources as text."""

from __future__ import annotations

import enum

import torch

from braze.ir.captured.source import ItemSource, LocalSource

STATE = LocalSource("state")


class Colour(enum.Enum):
    RED = 1


class Loud:
    def __repr__(self) -> str:
        raise AssertionError("a source runs the program's code")


def test_keys_print_as_constants_or_by_identity() -> None:
    for key in ("a", 3, (1, 2), None, Colour.RED, int):
        assert str(ItemSource(STATE, key)) == f"L['state'][{key!r}]"
    weight = torch.nn.Parameter(torch.zeros(100, 100))
    text = str(ItemSource(STATE, weight))
    assert text == f"L['state'][<torch.nn.parameter.Parameter object at {id(weight):#x}>]"
    assert "Loud object" in str(ItemSource(STATE, Loud()))
