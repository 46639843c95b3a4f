"""What guards say of values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from braze.runtime.guard_words import short_text


class Unprintable(torch.Tensor):
    def __repr__(self) -> str:  # type: ignore[override]
        raise AssertionError("a tensor was printed: on a GPU that waits for the device")


UNPRINTABLE = torch.ones(2, 3).as_subclass(Unprintable)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        ("a" * 100, "'" + "a" * 76 + "..."),
        ((1,), "(1,)"),
        ((), "()"),
        ({"a": [1, 2]}, "{'a': [1, 2]}"),
        (nn.Linear(1, 1), "Linear()"),
        (UNPRINTABLE, "Unprintable[2, 3]"),
        ({UNPRINTABLE: {"step": UNPRINTABLE}}, "{Unprintable[2, 3]: {'step': Unprintable[2, 3]}}"),
        (nn.Parameter(torch.ones(())), "Parameter[]"),
    ],
)
def test_texts(value: Any, text: str) -> None:
    assert short_text(value) == text


def test_long_containers_are_read_as_far_as_they_are_shown() -> None:
    read = []

    class Item:
        def __repr__(self) -> str:
            read.append(self)
            return "an item"

    items = [Item() for _ in range(1000)]
    text = short_text(items)
    assert len(text) == 80 and text.startswith("[an item, an item") and text.endswith("...")
    assert len(read) < 12
