"""Marks belong to exactly the function that was marked, and do not keep it alive."""

from __future__ import annotations

import functools
import weakref

import pytest
import torch

from braze.errors import UserError
from braze.marks import Mark, Marks


def make_function():  # type: ignore[no-untyped-def]
    def function(x: int) -> int:
        return x

    return function


def test_marks_are_by_identity() -> None:
    marks, function = Marks(), make_function()
    marks.put(function, Mark.DISABLE, "slow")
    assert marks.of(function) is Mark.DISABLE
    assert marks.note_of(function) == "slow"
    wrapper = functools.wraps(function)(make_function())
    assert marks.of(wrapper) is None
    assert marks.note_of(wrapper) == ""


def test_builtins_and_classes_can_be_marked() -> None:
    marks = Marks()
    for target in (torch.add, torch.nn.Linear, torch.Tensor.add):
        marks.put(target, Mark.ALLOW_IN_GRAPH)
        assert marks.of(target) is Mark.ALLOW_IN_GRAPH


def test_a_mark_does_not_keep_its_function() -> None:
    marks, function = Marks(), make_function()
    marks.put(function, Mark.DISABLE)
    reference = weakref.ref(function)
    del function
    assert reference() is None


def test_what_cannot_be_marked() -> None:
    marks = Marks()
    assert marks.of(3) is None
    assert marks.of([]) is None
    with pytest.raises(UserError, match="disable takes"):
        marks.put(3, Mark.DISABLE)
