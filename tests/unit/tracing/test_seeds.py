"""Seeds of attention's dropout, which PyTorch reads on the CPU, and in a capture on the device."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from braze.compat.torch import dispatcher as dispatch
from braze.compat.torch.dispatcher import direct_call

_NAMES = ("dropout_p", "philox_seed", "philox_offset")


class Seed:
    """Where its value is read."""

    def __init__(self, where: str) -> None:
        self.where = where

    def cpu(self) -> Seed:
        return Seed("cpu")


@pytest.mark.parametrize("op", dispatch._SEEDS)
def test_places_are_those_of_the_schema(op: Any) -> None:
    names = [argument.name for argument in op._schema.arguments]
    assert tuple(names[place] for place in dispatch._SEEDS[op]) == _NAMES


@pytest.mark.parametrize(
    ("probability", "captured", "read"),
    [(0.1, False, "cpu"), (0.1, True, "cuda"), (0.0, False, "cuda"), (-0.0, False, "cuda")],
)
@pytest.mark.parametrize("op", dispatch._SEEDS)
def test_where_a_call_gets_them(
    op: Any, probability: float, captured: bool, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without dropout they stay where they are: nothing waits for the device."""
    given: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    call: Any = direct_call(op)
    noted = functools.partial(call.func, lambda *args, **_: given.extend(args), *call.args[1:])
    args: list[Any] = [None] * len(op._schema.arguments)
    place, *seeds = dispatch._SEEDS[op]
    args[place] = probability
    for number in seeds:
        args[number] = Seed("cuda")
    noted(*args, scale=None)
    assert [given[number].where for number in seeds] == [read, read]


def test_others_are_called_as_they_are() -> None:
    op = torch.ops.aten._scaled_dot_product_flash_attention_backward.default
    assert direct_call(op) is op._op
