"""What guards say of values."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from braze.runtime.guards import messages as guard_words
from braze.runtime.guards.messages import short_text


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


def test_long_containers_are_read_as_far_as_they_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = []
    text_of = guard_words._text
    monkeypatch.setattr(guard_words, "_text", lambda value: shown.append(value) or text_of(value))
    text = short_text(list(range(1000, 2000)))
    assert len(text) == 80 and text.startswith("[1000, 1001, 1002") and text.endswith("...")
    assert len(shown) < 20


def test_methods_of_the_program_do_not_run() -> None:
    class Item:
        def __repr__(self) -> str:
            raise AssertionError("a message runs a method of the program")

    assert short_text([Item()]).startswith("[<tests.unit.runtime.test_guard_words.")
