"""Annotations that name what is not defined, evaluated when compiled: from Python 3.14 on."""

# No `from __future__ import annotations`: the annotations are to be evaluated late.
import dataclasses
import importlib
import sys
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal

pytestmark = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="annotations are evaluated early"
)


def program(x: torch.Tensor) -> Any:
    """`annotationlib` calls the annotations' function with cells of its own."""
    annotations = importlib.import_module("annotationlib")

    @dataclasses.dataclass
    class Made:
        d: list[undefined]  # type: ignore[name-defined]  # noqa: F821

    try:
        annotations.get_annotations(Made.__init__)
    except NameError as error:
        caught = error.name
    found = annotations.get_annotations(Made.__init__, format=annotations.Format.FORWARDREF)
    return x + 1, caught, str(found["d"].__args__[0].__forward_arg__)


def test_forward_references_are_as_eager_leaves_them(journal: Journal) -> None:
    compiled = braze.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2))[1:] == program(torch.ones(2))[1:] == ("undefined",) * 2
    assert {record.outcome for record in journal.records()} <= {"graph", "refused"}
