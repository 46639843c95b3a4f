"""Recipes and effects as code: identity, order, cycles, and nothing before write-back."""

from __future__ import annotations

import functools
import types
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.frame import (
    NULL,
    Break,
    CapturedCall,
    FillInstance,
    FrameState,
    FromConstant,
    FromGraph,
    FromSource,
    GraphBreak,
    NewCall,
    NewDict,
    NewFunction,
    NewInstance,
    NewSequence,
    Recipe,
    ReplaceContents,
    Return,
    SetAttribute,
    SetCell,
    SetGlobal,
    SetItem,
)
from braze.ir.captured.source import AttributeSource, LocalSource
from braze.ir.origin import UNKNOWN
from braze.runtime.resume.reconstruct import compile_replay

X = FromSource(LocalSource("x"))
Pair = namedtuple("Pair", "left right")


def replay(exit: Recipe, *effects: Any, results: tuple[Any, ...] = (), **values: Any) -> Any:
    function = compile_replay(effects, Return(exit))
    return function(FrameValues(values, (), {}), results)


def constants(*values: Any) -> tuple[Recipe, ...]:
    return tuple(FromConstant(value) for value in values)


class Node:
    def __init__(self) -> None:
        raise AssertionError("no constructor runs")

    def __setattr__(self, name: str, value: Any) -> None:
        raise AssertionError("no user code runs")


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: Any


class Listed(list):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("no user code runs")


class Mapped(OrderedDict):  # type: ignore[type-arg]
    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("no user code runs")


@pytest.mark.parametrize(
    "recipe, expected",
    [
        (NewSequence(list, constants(1, 2)), [1, 2]),
        (NewSequence(list, ()), []),
        (NewSequence(tuple, ()), ()),
        (NewSequence(tuple, constants(1)), (1,)),
        (NewSequence(tuple, constants(1, 2)), (1, 2)),
        (NewSequence(set, constants(1, 2)), {1, 2}),
        (NewSequence(frozenset, constants(1)), frozenset({1})),
        (NewSequence(Pair, constants(1, 2)), Pair(1, 2)),
        (NewSequence(torch.Size, constants(1, 2)), torch.Size([1, 2])),
        (NewSequence(torch.return_types.max, constants(1, 2)), torch.return_types.max((1, 2))),
        (NewSequence(deque, constants(1, 2)), deque([1, 2])),
        (NewDict(dict, ((FromConstant("a"), FromConstant(1)),)), {"a": 1}),
        (NewDict(OrderedDict, ((FromConstant(2), FromConstant(1)),)), OrderedDict({2: 1})),
        (NewDict(Counter, ((FromConstant("ab"), FromConstant(3)),)), Counter({"ab": 3})),
        (NewDict(Counter, ()), Counter()),
        (NewCall(slice, constants(1, 2, None)), slice(1, 2, None)),
        (NewCall(dict, (), (("a", FromConstant(1)), ("not a name", FromConstant(2)))),
         {"a": 1, "not a name": 2}),
        (NewCall(types.MethodType, constants(len, "ab")), types.MethodType(len, "ab")),
    ],
)  # fmt: skip
def test_new_objects(recipe: Recipe, expected: Any) -> None:
    made = replay(recipe)
    assert made == expected and type(made) is type(expected)


def test_defaultdict_and_partial() -> None:
    recipe = NewDict(defaultdict, ((FromConstant("a"), FromConstant(1)),), FromConstant(list))
    made = replay(recipe)
    assert made == {"a": 1} and made.default_factory is list
    call = replay(NewCall(functools.partial, constants(int), (("base", FromConstant(2)),)))
    assert call("11") == 3


def test_a_recipe_used_twice_is_one_object_and_every_replay_makes_new_ones() -> None:
    shared = NewSequence(list, (FromGraph(0),))
    other = NewSequence(list, (FromGraph(0),))
    function = compile_replay((), Return(NewSequence(tuple, (shared, shared, other))))
    here = FrameValues({}, (), {})
    first, again = function(here, [5]), function(here, [6])
    assert first == ([5], [5], [5]) and again == ([6], [6], [6])
    assert first[0] is first[1] and first[0] is not first[2] and first[0] is not again[0]


def test_cycle_of_instances() -> None:
    parent, child = NewInstance(Node), NewInstance(Node)
    made = replay(
        parent,
        FillInstance(parent, (("child", child), ("name", FromConstant("p")))),
        FillInstance(child, (("parent", parent), ("same", child))),
    )
    assert made.child.parent is made and made.child.same is made.child and made.name == "p"
    assert list(made.__dict__) == ["child", "name"]


def test_cycle_through_a_list() -> None:
    node = NewInstance(Node)
    holder = NewSequence(list, (node, FromConstant(1)))
    made = replay(holder, FillInstance(node, (("holder", holder),)))
    assert made[0].holder is made


def test_instances_are_filled_before_they_are_hashed() -> None:
    item = NewInstance(Frozen)
    slots: Any = ((Frozen.a, FromConstant(1)), (Frozen.b, FromConstant(2)))
    made = replay(
        NewSequence(set, (item,)),
        FillInstance(item, (), slots=slots),
    )
    assert made == {Frozen(1, 2)}


def test_instances_that_extend_containers() -> None:
    listed, mapped = NewInstance(Listed), NewInstance(Mapped)
    made = replay(
        NewSequence(tuple, (listed, mapped)),
        FillInstance(listed, (("tag", FromConstant(1)),), list_items=constants(1, 2)),
        FillInstance(mapped, (), dict_items=((FromConstant("a"), listed),)),
    )
    assert made[0] == [1, 2] and made[0].tag == 1
    assert made[1]["a"] is made[0] and list(made[1]) == ["a"]


def test_an_instance_that_nobody_sees_is_not_made() -> None:
    node = NewInstance(Node)
    text = compile_replay((FillInstance(node, ()),), Return(FromConstant(1))).__braze_source__  # type: ignore[attr-defined]
    assert "__new__" not in text


def test_new_function() -> None:
    def maker(z: int) -> Any:
        def inner(a: int, b: int = 2, *, c: int = 3) -> tuple[Any, ...]:
            return a, b, c, z, K  # type: ignore[name-defined]  # noqa: F821

        return inner

    inner = maker(0)
    cell = NewCall(types.CellType, constants(9))
    recipe = NewFunction(
        inner.__code__, {"K": "global"}, "renamed", "q.renamed", "mod", FromConstant((20,)),
        NewDict(dict, ((FromConstant("c"), FromConstant(30)),)), (cell,),
    )  # fmt: skip
    function, made_cell = replay(NewSequence(tuple, (recipe, cell)))
    assert function(1) == (1, 20, 30, 9, "global")
    assert (function.__name__, function.__qualname__) == ("renamed", "q.renamed")
    assert function.__module__ == "mod" and function.__closure__[0] is made_cell


# --- effects -------------------------------------------------------------------------------------


class Plain:
    pass


def test_attributes() -> None:
    class Plain:
        pass

    class Watched(Plain):
        __slots__ = ("b", "empty", "held")
        log: list[Any] = []

        def __setattr__(self, name: str, value: Any) -> None:
            self.log.append(name)
            object.__setattr__(self, name, value)

    x = Watched()
    x.held = 1
    x.__dict__["gone"] = x.__dict__["held"] = 1
    replay(
        FromConstant(None),
        SetAttribute(X, "a", FromConstant(1)),
        SetAttribute(X, "b", FromConstant(2), through_dict=False),
        SetAttribute(X, "gone", None),
        SetAttribute(X, "held", None, through_dict=False),
        SetAttribute(X, "empty", None, through_dict=False),
        x=x,
    )
    assert x.__dict__ == {"held": 1, "a": 1} and x.b == 2
    assert Watched.log == ["held"] and not hasattr(x, "held") and not hasattr(x, "empty")


def test_class_attributes() -> None:
    class Changed:
        gone = 1

    replay(X, SetAttribute(X, "a", FromConstant(1)), SetAttribute(X, "gone", None), x=Changed)
    assert Changed.a == 1 and not hasattr(Changed, "gone")  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", [dict, OrderedDict, Mapped])
def test_items(cls: type) -> None:
    x = cls()
    cls.__mro__[-2].__setitem__(x, "a", 1) if cls is dict else OrderedDict.__setitem__(x, "a", 1)
    replay(
        X,
        SetItem(X, FromConstant("b"), FromConstant(2)),
        SetItem(X, FromConstant("a"), None),
        x=x,
    )
    assert list(x.items()) == [("b", 2)]


@pytest.mark.parametrize(
    "old, new",
    [
        ([1], NewSequence(list, constants(3, 4))),
        ({1}, NewSequence(set, constants(3, 4))),
        ({1: 1}, NewDict(dict, ((FromConstant(3), FromConstant(4)),))),
        (OrderedDict({1: 1}), NewDict(dict, ((FromConstant(3), FromConstant(4)),))),
        (Mapped(), NewDict(dict, ((FromConstant(3), FromConstant(4)),))),
        (Listed([1]), NewSequence(list, constants(3, 4))),
        (deque([1], maxlen=2), NewSequence(list, constants(3, 4))),
        (bytearray(b"ab"), FromConstant(b"cd")),
    ],
)
def test_replaced_contents(old: Any, new: Recipe) -> None:
    expected = replay(new)
    assert replay(X, ReplaceContents(X, new), x=old) is old
    assert len(old) == 2 or old == {3: 4}
    assert list(old) == list(expected)


def test_globals_cells_and_calls_in_order() -> None:
    namespace: dict[str, Any] = {"gone": 1}
    cell, empty = types.CellType(1), types.CellType(1)
    log: list[Any] = []
    effects = (
        SetGlobal(namespace, "a", FromGraph(0)),
        CapturedCall(log.append, (FromConstant("between"),)),
        SetGlobal(namespace, "gone", None),
        SetCell(FromConstant(cell), FromGraph(0)),
        SetCell(FromConstant(empty), None),
        CapturedCall(lambda: log.append(dict(namespace)), ()),
    )
    replay(FromConstant(None), *effects, results=(7,))
    assert namespace == {"a": 7} and cell.cell_contents == 7 and log == ["between", {"a": 7}]
    with pytest.raises(ValueError):
        _ = empty.cell_contents


def test_sources_are_read_before_the_first_effect() -> None:
    x = Plain()
    x.a, x.b = 1, 2  # type: ignore[attr-defined]
    a = FromSource(AttributeSource(LocalSource("x"), "a"))
    b = FromSource(AttributeSource(LocalSource("x"), "b"))
    result = replay(
        NewSequence(tuple, (a, b)), SetAttribute(X, "a", b), SetAttribute(X, "b", a), x=x
    )
    assert (x.a, x.b) == (2, 1) and result == (1, 2)  # type: ignore[attr-defined]


def test_nothing_happens_when_building_fails() -> None:
    x: list[int] = []

    def fails() -> None:
        raise RuntimeError("fault")

    with pytest.raises(RuntimeError):
        replay(NewCall(fails, ()), ReplaceContents(X, NewSequence(list, constants(1))), x=x)
    assert x == []


def test_break_rebuilds_the_open_frames() -> None:
    code = test_break_rebuilds_the_open_frames.__code__
    shared = NewSequence(list, (FromGraph(0),))
    inner = FrameState(code, {}, 8, (("y", shared),), (FromConstant(NULL), X, shared))
    outer = FrameState(code, {"g": 1}, 4, (("x", X),), (shared,))
    exit = Break(GraphBreak("code", "reason", "hint", UNKNOWN), (outer, inner))
    frames = compile_replay((), exit)(FrameValues({"x": 3}, (), {}), [5])
    assert [(frame.offset, frame.code) for frame in frames] == [(4, code), (8, code)]
    assert frames[0].locals == {"x": 3} and frames[0].globals == {"g": 1}
    assert frames[1].stack == [NULL, 3, [5]]
    assert frames[1].stack[2] is frames[0].stack[0] is frames[1].locals["y"]
