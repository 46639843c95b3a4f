"""A property of a metaclass is Python code that reads what it likes."""

from __future__ import annotations

from types import SimpleNamespace

import torch

import braze
from braze.trace import Journal

STORE = SimpleNamespace(value=1)


class Meta(type):
    @property
    def current(cls) -> int:
        return STORE.value


class Group(metaclass=Meta):
    pass


def test_property_of_a_metaclass_is_interpreted(journal: Journal) -> None:
    compiled = braze.compile(lambda x: x + Group.current, fullgraph=True)
    x = torch.ones(2)
    try:
        for value in (1, 1, 5, 1):
            STORE.value = value
            assert torch.equal(compiled(x), x + value)
    finally:
        STORE.value = 1
    assert [record.outcome for record in journal.records()][:1] == ["graph"]
