"""Dicts and sets from outside whose members hash and compare by code of the program."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import braze
from braze.errors import GraphBreakError


@dataclass(frozen=True)
class Key:
    number: int
    name: str = "a"


class Hashed:
    """Hashes and compares by a number that may change."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.number == other.number


def _mutate(key: Any, number: int) -> None:
    object.__setattr__(key, "number", number)


def _replace_first(table: dict[Any, Any], key: Any) -> None:
    rest = [*table.items()][1:]
    value = next(iter(table.values()))
    table.clear()
    table.update([(key, value), *rest])


def _insert_under_another_hash(table: dict[Any, Any], made: type) -> None:
    """The first key has the number 1 again, and is kept under the hash of 7."""
    first, value = next(iter(table.items()))
    del table[first]
    rest = [*table.items()]
    table.clear()
    _mutate(first, 7)
    table[first] = value
    _mutate(first, 1)
    table.update(rest)


def _reorder(table: dict[Any, Any]) -> None:
    first = next(iter(table))
    table[first] = table.pop(first)


CHANGES: dict[str, Callable[[dict[Any, Any], type], None]] = {
    "nothing": lambda table, made: None,
    "value": lambda table, made: table.update({made(1): 7.0}),
    "added": lambda table, made: table.update({made(9): 5.0}),
    "removed": lambda table, made: table.pop(made(1)),
    "replaced": lambda table, made: _replace_first(table, made(1)),
    "another": lambda table, made: _replace_first(table, made(11)),
    "mutated": lambda table, made: _mutate(next(iter(table)), 3),
    "under another hash": _insert_under_another_hash,
    "reordered": lambda table, made: _reorder(table),
    "emptied": lambda table, made: table.clear(),
}

# The dict has other hashes than its keys say: Python alone can look it up.
HASHES_CHANGED = ("mutated", "under another hash")


def _looked_up(table: dict[Any, Any], x: torch.Tensor, key: Any) -> Any:
    return x * table.get(key, 100.0) + len(table), key in table


def _iterated(table: dict[Any, Any], x: torch.Tensor, key: Any) -> Any:
    for place, (member, value) in enumerate(table.items()):
        x = x * value + member.number * (place + 1)
    return x, [*table.values()]


def _by_item(table: dict[Any, Any], x: torch.Tensor, key: Any) -> Any:
    try:
        return x * table[key], ""
    except KeyError:
        return x, "missing"


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("program", [_looked_up, _iterated, _by_item])
@pytest.mark.parametrize("made", [Key, Hashed])
def test_dicts_after_changes(program: Any, made: Any, change: str) -> None:
    whole = change not in HASHES_CHANGED
    outcomes = []
    for held in (program, braze.compile(program, fullgraph=whole, backend="eager")):
        table = {made(1): 2.0, made(2): 3.0}
        x, found = torch.arange(3.0), []
        found.append(held(table, x, made(1)))
        CHANGES[change](table, made)
        for key in (made(1), made(9), made(3)):
            found.append(held(table, x, key))
        outcomes.append([(y.tolist(), rest) for y, rest in found])
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("name", ["__hash__", "__eq__"])
def test_another_method_of_the_key(name: str) -> None:
    class Named(Hashed):
        __hash__ = Hashed.__hash__

    table = {Named(1): 2.0, Named(2): 3.0}

    @braze.compile(fullgraph=True, backend="eager")
    def found(x: torch.Tensor, key: Any) -> torch.Tensor:
        return x * table.get(key, 100.0)

    x = torch.ones(2)
    assert found(x, Named(1)).tolist() == [2.0, 2.0]
    answer = {"__hash__": lambda key: 77, "__eq__": lambda key, other: False}[name]
    setattr(Named, name, answer)
    if name == "__hash__":  # the keys are kept under the hashes that they had
        with pytest.raises(GraphBreakError, match="hashes changed"):
            found(x, Named(1))
    else:
        assert found(x, Named(1)).tolist() == [100.0, 100.0]
        assert found(x, next(iter(table))).tolist() == [2.0, 2.0]


def _membership(members: Any, x: torch.Tensor, key: Any) -> Any:
    found = [member.number for member in members]
    return x + len(members) if key in members else x - sum(found), found


@pytest.mark.parametrize("kind", [set, frozenset])
@pytest.mark.parametrize("made", [Key, Hashed])
def test_sets_after_changes(kind: Any, made: Any) -> None:
    # The hashes of texts differ from process to process: an order that no copy has breaks.
    members = kind({made(1), made(2), made(5)})
    held = braze.compile(_membership, fullgraph=made is Hashed, backend="eager")
    x = torch.ones(2)

    def same(key: Any) -> None:
        expected, found = _membership(members, x, key), held(members, x, key)
        assert (expected[0].tolist(), expected[1]) == (found[0].tolist(), found[1])

    for key in (made(1), made(9)):
        same(key)
    members = kind({*members, made(9)})
    same(made(9))
    members = kind(sorted(members, key=lambda member: -member.number)[:2])
    for key in (made(1), made(9)):
        same(key)


def test_sets_of_plain_objects() -> None:
    class Tag:
        weight = 2.0

    def program(tags: set[Any], x: torch.Tensor, tag: Any) -> Any:
        return x * sum(each.weight for each in tags) + (tag in tags)

    tags, x = {Tag(), Tag()}, torch.ones(2)
    first = next(iter(tags))
    # Where addresses collide a copy may have another order: it breaks.
    held = braze.compile(program, backend="eager")
    for change in (
        lambda: None,
        lambda: setattr(first, "weight", 5.0),
        lambda: tags.add(Tag()),
        lambda: tags.discard(first),
        lambda: setattr(Tag, "weight", 3.0),
    ):
        change()
        for tag in (first, Tag()):
            assert held(tags, x, tag).tolist() == program(tags, x, tag).tolist()


def test_writes_to_a_dict_of_objects() -> None:
    def write(table: dict[Any, Any], x: torch.Tensor) -> torch.Tensor:
        table[Key(3)] = x * table[Key(1)]
        del table[Key(2)]
        table[Key(1)] += 1
        return table.setdefault(Key(4), x) + x

    tables: list[dict[Any, Any]] = []
    for function in (write, braze.compile(write, fullgraph=True, backend="eager")):
        table: dict[Any, Any] = {Key(1): 2.0, Key(2): 3.0}
        first = next(iter(table))
        results = [function(table, torch.ones(2)).tolist()]
        table[Key(2)] = 4.0
        results.append(function(table, torch.ones(2)).tolist())
        assert next(iter(table)) is first
        held = {k: v.tolist() if isinstance(v, torch.Tensor) else v for k, v in table.items()}
        tables.append({"held": [*held.items()], "results": results})
    assert tables[0] == tables[1]


def test_hash_with_an_effect_breaks() -> None:
    asked: list[int] = []

    class Noted(Hashed):
        def __hash__(self) -> int:
            asked.append(self.number)
            return hash(self.number)

    table = {Noted(1): 2.0}
    held = braze.compile(lambda x, key: x * table[key], fullgraph=True, backend="eager")
    with pytest.raises(GraphBreakError, match="changes something"):
        held(torch.ones(2), Noted(1))
    assert asked == [1]


def test_keys_that_share_a_hash_break() -> None:
    table = {Key(-1): 2.0, Key(-2): 3.0}  # hash(-1) is hash(-2)
    held = braze.compile(lambda x, key: x * table[key], fullgraph=True, backend="eager")
    with pytest.raises(GraphBreakError, match="are shared"):
        held(torch.ones(2), Key(-1))


def test_random_hash_breaks() -> None:
    class Drawn(Hashed):
        def __hash__(self) -> int:
            return random.randrange(1000)

    table = {Drawn(1): 2.0, Drawn(2): 3.0}
    held = braze.compile(lambda x, key: x * len([*table]), fullgraph=True, backend="eager")
    with pytest.raises(GraphBreakError):
        held(torch.ones(2), Drawn(1))


class _Filling(dict):  # type: ignore[type-arg]
    def __missing__(self, key: Any) -> int:
        self[key] = 3
        return 3


def test_missing_items_are_made_under_keys_that_hash_by_python_code() -> None:
    def from_outside(x: torch.Tensor, key: Any, filling: Any) -> Any:
        filling[Hashed(9)] = 1
        return x * filling[key] + filling[Hashed(9)] * filling[Hashed(10)], len(filling)

    def made_here(x: torch.Tensor, key: Any, _: Any) -> Any:
        filling = _Filling()
        filling[key] = 5
        return x * filling[key] + filling[Hashed(1)], len(filling)

    for program in (from_outside, made_here):
        found = []
        for step in (program, braze.compile(program)):
            filling = _Filling()
            made = [step(torch.ones(1), Hashed(n), filling) for n in (0, 0, 1)]
            found.append((str(made), [(key.number, v) for key, v in filling.items()]))
        assert found[1] == found[0]
