"""Facts of classes are forgotten with the classes: a compile keeps no program's class alive."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import braze
from braze.class_facts import fact_of_class


def test_fact_is_computed_once() -> None:
    asked = []

    @fact_of_class
    def name_of(cls: type) -> str:
        asked.append(cls)
        return cls.__name__

    assert [name_of(int), name_of(int), name_of(str)] == ["int", "int", "str"]
    assert asked == [int, str]


@pytest.mark.parametrize("backend", ["braze", "eager"])
def test_classes_and_closures_are_freed(backend: str) -> None:
    def run() -> list[weakref.ref[Any]]:
        layer = torch.nn.Linear(3, 3)

        class Key:
            pass

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer, self.table = layer, {Key(): 2}

            def forward(self, x: torch.Tensor) -> Any:
                held = [Key(), (self.layer, Key)]
                return self.layer(x) * len(self.table) * len(held), isinstance(held[0], Key)

        model = Model()
        braze.compile(model, backend=backend)(torch.ones(2, 3))
        return [weakref.ref(layer), weakref.ref(Model), weakref.ref(Key)]

    references = run()
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]
