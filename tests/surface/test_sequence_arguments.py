"""Functions of torch that are given subclasses of builtin containers: as in eager, or a break."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal
from tests.surface.sequence_arguments import FIXED, METHODS, differences, subclasses

STEP = 2 * len(METHODS) + 1


@pytest.mark.parametrize("index", range(len(FIXED)), ids=list(FIXED))
def test_subclass_arguments_are_as_in_eager(index: int) -> None:
    name, (function, items) = [*FIXED.items()][index]
    assert len([*subclasses()]) >= 4 * STEP
    assert not [*differences(name, function, items, slice(index % STEP, None, STEP))]


class Tensors(list[torch.Tensor]):
    pass


class Reversed(list[torch.Tensor]):
    def __iter__(self) -> Any:
        return reversed([*super().__iter__()])


Pair = collections.namedtuple("Pair", "first second")


def test_plain_subclasses_keep_one_graph(journal: Journal) -> None:
    x, y = torch.ones(2), torch.zeros(2)
    for value in (Tensors([x, y]), Pair(x, y)):
        compiled = braze.compile(lambda v: torch.stack(v) + 1)
        assert torch.equal(compiled(value), torch.stack(value) + 1)  # type: ignore[arg-type]
    records = journal.records()
    assert [record.outcome for record in records] == ["graph", "graph"]
    assert not any(record.graph_break for record in records)


def test_other_nested_items_are_noticed() -> None:
    for make in (Tensors, Pair._make):
        inner = [1, 2]
        value: Any = make([inner, [3, 4]])
        compiled = braze.compile(torch.tensor)
        assert compiled(value).tolist() == [[1, 2], [3, 4]]
        inner[0] = 9
        assert compiled(value).tolist() == [[9, 2], [3, 4]]


def test_overridden_items_break(journal: Journal) -> None:
    compiled = braze.compile(lambda v: torch.tensor(v) + 1)
    assert compiled(Reversed([1, 2])).tolist() == [3, 2]
    found = [record.graph_break for record in journal.records() if record.graph_break]
    assert [each.code for each in found] == ["unseen-python"]
    assert "Reversed.__iter__" in found[0].reason
