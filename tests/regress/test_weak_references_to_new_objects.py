"""A weak reference to an object made in the frame says whether the program still has it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.trace import Journal


class Item:
    pass


class Carrying(Exception):
    def __init__(self, item: Item) -> None:
        self.item = item


kept: list[Any] = []


def _name_deleted() -> Any:
    item = Item()
    reference = weakref.ref(item)
    del item
    return reference() is None


def _name_rebound() -> Any:
    item: Any = Item()
    reference = weakref.ref(item)
    before = reference() is item
    item = None
    return before, reference() is None


def _exception_handled() -> Any:
    reference: Any = None
    try:
        item: Any = Item()
        reference = weakref.ref(item)
        raise Carrying(item)
    except Carrying:
        item = None
    gc.collect()
    return reference() is None


def _generator_closed() -> Any:
    def raising() -> Any:
        try:
            raise Carrying(item)
        except Carrying:
            yield

    item: Any = Item()
    reference = weakref.ref(item)
    generator: Any = raising()
    next(generator)
    during = reference() is None
    generator.close()
    generator = item = None
    gc.collect()
    return during, reference() is None


def _of_a_list() -> Any:
    items = [Item(), Item()]
    references = [weakref.ref(each) for each in items]
    before = [each() is None for each in references]
    items.pop()
    return before, [each() is None for each in references]


def _of_an_attribute() -> Any:
    holder = Item()
    holder.item = Item()  # type: ignore[attr-defined]
    reference = weakref.ref(holder.item)  # type: ignore[attr-defined]
    before = reference() is None
    holder.item = None  # type: ignore[attr-defined]
    return before, reference() is None


def _of_a_closure() -> Any:
    item: Any = Item()
    reference = weakref.ref(item)

    def get() -> Any:
        return item

    gets: Any = [get]
    before = reference() is None
    item = None
    return before, reference() is None, gets[0]()


def _of_a_table() -> Any:
    table: Any = weakref.WeakValueDictionary()
    item = Item()
    table["a"] = item
    before = table.get("a") is item
    del item
    return before, table.get("a") is None


def _kept_outside() -> Any:
    kept.append(Item())
    reference = weakref.ref(kept[-1])
    before = reference() is None
    kept.clear()
    return before, reference() is None


PROGRAMS: dict[str, Callable[[], Any]] = {
    function.__name__.strip("_"): function
    for function in (
        _name_deleted,
        _name_rebound,
        _exception_handled,
        _generator_closed,
        _of_a_list,
        _of_an_attribute,
        _of_a_closure,
        _of_a_table,
        _kept_outside,
    )
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_ended_objects_are_as_in_eager(name: str) -> None:
    question = PROGRAMS[name]

    def program(x: torch.Tensor) -> Any:
        y = x + 1
        return question(), y * 2

    compiled = braze.compile(program, backend="eager")
    for _ in range(3):
        answer, y = compiled(torch.ones(2))
        assert (answer, y.tolist()) == (program(torch.ones(2))[0], [4, 4])


def test_held_objects_need_no_break(journal: Journal) -> None:
    def program(x: torch.Tensor) -> Any:
        holder = Item()
        holder.items = {"a": [Item()]}  # type: ignore[attr-defined]
        reference = weakref.ref(holder.items["a"][0])  # type: ignore[attr-defined]
        return x + (reference() is not None)

    compiled = braze.compile(program, backend="eager")
    assert compiled(torch.ones(1)).tolist() == [2]
    assert [(r.outcome, r.graph_break) for r in journal.records()] == [("graph", None)]
