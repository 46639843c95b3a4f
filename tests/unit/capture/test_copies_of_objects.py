"""`copy.copy` and `copy.deepcopy` of objects of all kinds are part of the graph."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

X = torch.arange(3.0)


class Plain:
    def __init__(self) -> None:
        self.a, self.items = 1, [1, [2]]


class Hooked(Plain):
    """Finds its attributes by Python code, which C code would run unseen."""

    def __getattribute__(self, name: str) -> Any:
        if name == "alias":
            name = "a"
        return super().__getattribute__(name)


class HookedState(Hooked):
    def __getstate__(self) -> Any:
        return {"a": self.alias + 1}


class HookedReduce(Hooked):
    def __reduce__(self) -> Any:
        return HookedReduce, (), {"a": self.alias + 5}


class Slotted:
    __slots__ = ("__private", "empty", "items")

    def __init__(self) -> None:
        self.items, self.__private = [1], 2


class SlottedWithDict(Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.more = {"k": [3]}


class OneSlot:
    __slots__ = "only"

    def __init__(self) -> None:
        self.only = [1]


class Listed(list[Any]):
    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self.note = ["n"]


class Mapped(dict[str, Any]):
    def __init__(self, *items: Any) -> None:
        super().__init__(*items)
        self.note = ["n"]


class CountedMapped(dict[str, Any]):
    def items(self) -> Any:
        return [("other", 1)]


class Ordered(collections.OrderedDict[str, Any]):
    pass


class Tupled(tuple[Any, ...]):
    pass


class Named(collections.namedtuple("Named", "a b")):
    pass


class Number(int):
    pass


class Colour(enum.Enum):
    RED = 1


class Reduced:
    def __init__(self, a: Any) -> None:
        self.a = a

    def __reduce__(self) -> Any:
        return Reduced, (self.a,)


class State:
    def __init__(self) -> None:
        self.a = [1]

    def __getstate__(self) -> Any:
        return {"a": self.a, "z": 1}

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state, set=True)


class Given:
    def __new__(cls, *, value: Any) -> Given:
        made = object.__new__(cls)
        made.value = value  # type: ignore[attr-defined]
        return made

    def __getnewargs_ex__(self) -> Any:
        return (), {"value": self.value}  # type: ignore[attr-defined]


class Cyclic:
    def __init__(self) -> None:
        self.me, self.items = self, [self]


@dataclasses.dataclass
class Data:
    a: int = 1
    items: list[int] = dataclasses.field(default_factory=lambda: [1])


@dataclasses.dataclass(slots=True)
class SlottedData:
    a: int = 1
    items: list[int] = dataclasses.field(default_factory=lambda: [1])


@dataclasses.dataclass(frozen=True)
class FrozenData:
    a: int = 1


MAKERS: dict[str, Callable[[], Any]] = {
    **{
        kind.__name__: kind
        for kind in (
            *(Plain, Hooked, HookedState, HookedReduce, Slotted, SlottedWithDict, OneSlot),
            *(State, Cyclic, Data, SlottedData, FrozenData),
        )
    },
    "Listed": lambda: Listed([1, [2]]),
    "Mapped": lambda: Mapped({"k": [1]}),
    "CountedMapped": lambda: CountedMapped({"k": [1]}),
    "Ordered": lambda: Ordered(k=[1]),
    "Tupled": lambda: Tupled([1, [2]]),
    "Named": lambda: Named(1, [2]),
    "Number": lambda: Number(3),
    "Colour": lambda: Colour.RED,
    "Reduced": lambda: Reduced([1]),
    "Given": lambda: Given(value=[1]),
    "defaultdict": lambda: collections.defaultdict(list, {"k": [1]}),
    "Counter": lambda: collections.Counter("abca"),
    "deque": lambda: collections.deque([1, [2]], 5),
}


def _shown(value: Any, depth: int = 0) -> Any:
    """A value's type, items, slots and attributes, to some depth."""
    if depth > 4:
        return "..."
    shown: list[Any] = [type(value).__name__]
    if isinstance(value, dict):
        shown.append([(key, _shown(held, depth + 1)) for key, held in dict.items(value)])
    elif isinstance(value, (list, tuple, collections.deque)):
        shown.append([_shown(item, depth + 1) for item in value])
    elif isinstance(value, (int, str)):
        shown.append(value)
    for name in ("items", "empty", "_Slotted__private", "only", "a"):
        if isinstance(getattr(type(value), name, None), type(Slotted.items)):  # type: ignore[attr-defined]
            shown.append((name, _shown(getattr(value, name, "none"), depth + 1)))
    if hasattr(value, "__dict__") and not isinstance(value, enum.Enum):
        shown.append({name: _shown(held, depth + 1) for name, held in vars(value).items()})
    return shown


def _shares(value: Any, other: Any) -> list[bool]:
    """Whether two objects are one, and whether what they hold is."""
    spaces = getattr(value, "__dict__", {}), getattr(other, "__dict__", {})
    return [value is other, *[held is spaces[1].get(name) for name, held in spaces[0].items()]]


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_copy_is_in_the_graph(kind: str, function: Callable[[Any], Any], inside: bool) -> None:
    make = MAKERS[kind]

    def program(x: torch.Tensor, given: Any) -> Any:
        value = make() if inside else given
        copied = function(value)
        return x + 1, value, copied

    braze.reset()
    compiled = braze.compile(program, fullgraph=True)
    given = make()
    for _ in range(3):
        (result, value, copied), (_, *wanted) = compiled(X, given), program(X, given)
        assert torch.equal(result, X + 1)
        assert [_shown(value), _shown(copied)] == [_shown(one) for one in wanted]
        assert _shares(copied, value) == _shares(wanted[1], wanted[0])
    (row,) = braze.status()
    assert (row.graphs, row.entries, row.breaks) == (1, 1, ())


@pytest.mark.parametrize("function", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("kind", MAKERS)
def test_another_object_is_copied_as_it_is(kind: str, function: Callable[[Any], Any]) -> None:
    def program(x: torch.Tensor, given: Any) -> Any:
        return x + 1, function(given)

    compiled = braze.compile(program, fullgraph=True)
    for _ in range(3):
        given = MAKERS[kind]()
        copied, wanted = compiled(X, given)[1], function(given)
        assert _shown(copied) == _shown(wanted)
        assert _shares(copied, given) == _shares(wanted, given)


def test_what_is_copied_is_guarded() -> None:
    """Attributes, slots and items that change between calls are in the next copy."""

    def program(x: torch.Tensor, *given: Any) -> Any:
        return x + 1, [copy.deepcopy(one) for one in given]

    compiled = braze.compile(program, fullgraph=True, recompile_limit=20)
    given: list[Any] = [Slotted(), Listed([1]), Mapped({"k": 1}), Hooked(), SlottedWithDict()]
    changes: list[Callable[[], Any]] = [
        lambda: None,
        lambda: given[0].items.append(5),
        lambda: setattr(given[0], "empty", 3),
        lambda: given[1].append(2),
        lambda: given[1].note.append("more"),
        lambda: given[2].update(k=2, j=3),
        lambda: setattr(given[3], "late", 1),
        lambda: setattr(given[3], "a", 7),
        lambda: given[4].more.update(k=0),
        lambda: delattr(given[0], "empty"),
    ]
    for change in changes:
        change()
        assert [_shown(one) for one in compiled(X, *given)[1]] == [_shown(one) for one in given]


def test_state_in_c_breaks_the_graph() -> None:
    def program(x: torch.Tensor, error: ValueError) -> Any:
        return x + 1, copy.copy(error).args

    compiled = braze.compile(program)
    for k in range(2):
        assert compiled(X, ValueError(k))[1] == (k,)
    (row,) = [row for row in braze.status() if "program" in row.name][-1:]
    assert [note.code for note in row.breaks] == ["unseen-callable"]
