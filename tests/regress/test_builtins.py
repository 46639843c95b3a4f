"""Builtins that a program replaces, before a call or in it."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

import braze


def doubled_or_not(x: torch.Tensor) -> Any:
    return x * 2, isinstance(x, torch.Tensor), hex


def test_a_builtin_that_is_replaced_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = braze.compile(doubled_or_not, backend="aot_eager")
    x = torch.ones(2)
    assert compiled(x)[2] is hex
    other = object()
    monkeypatch.setattr(builtins, "hex", other)
    found = compiled(x)
    monkeypatch.undo()
    assert found[2] is other
    assert compiled(x)[2] is hex


def test_a_builtin_that_is_replaced_in_the_frame() -> None:
    def program(x: torch.Tensor) -> Any:
        before = bin(2)
        kept = builtins.bin
        try:
            builtins.bin = lambda n: n
            within = bin(2)
        finally:
            builtins.bin = kept
        return x + 1, before, within, bin(2)

    explanation = braze.explain(program)(torch.ones(2))
    assert explanation.result[1:] == ("0b10", 2, "0b10")
    assert explanation.graph_count == 1 and not explanation.break_count
    assert bin(2) == "0b10"
