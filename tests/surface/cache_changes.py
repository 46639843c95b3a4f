"""Functions, caches, weak references, identities, enums and dataclasses that change."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import inspect
import numbers
import typing
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.surface.asking import Asked, Case, asking

CASES: dict[str, Case] = {}
_X = torch.ones(2)

# --- functions ---------------------------------------------------------------------------------


def _function_case(ask: Callable[[Any], Any]) -> Case:
    def case() -> Iterator[Asked]:
        cell = "first"

        def function(a: int = 1, *, b: int = 2) -> Any:
            return a, b, cell

        def other(a: int = 1, *, b: int = 2) -> Any:
            return "other", a, b, cell

        asked = asking(lambda: ask(function))
        yield asked, (_X,)
        function.__defaults__ = (5,)
        yield asked, (_X,)
        function.__kwdefaults__ = {"b": 6}
        yield asked, (_X,)
        function.__kwdefaults__["b"] = 7  # type: ignore[index]
        yield asked, (_X,)
        cell = "second"
        yield asked, (_X,)
        function.__code__ = other.__code__
        yield asked, (_X,)
        function.__annotations__ = {"a": str}
        yield asked, (_X,)
        function.__doc__ = "words"
        yield asked, (_X,)
        function.__name__ = "renamed"
        yield asked, (_X,)
        function.__wrapped__ = lambda z: z  # type: ignore[attr-defined]
        yield asked, (_X,)
        function.__signature__ = inspect.Signature()  # type: ignore[attr-defined]
        yield asked, (_X,)

    return case


for _name, _ask in {
    "called": lambda f: f(),
    "defaults": lambda f: f.__defaults__,
    "keyword defaults": lambda f: f.__kwdefaults__,
    "annotations": lambda f: f.__annotations__,
    "doc": lambda f: f.__doc__,
    "name": lambda f: f.__name__,
    "code": lambda f: f.__code__.co_names,
    "closure": lambda f: f.__closure__[0].cell_contents,
    "wrapped": lambda f: hasattr(f, "__wrapped__"),
    "signature": lambda f: [*inspect.signature(f).parameters],
    "default in signature": lambda f: [p.default for p in inspect.signature(f).parameters.values()],
    "getfullargspec": lambda f: inspect.getfullargspec(f).args,
    "get_type_hints": lambda f: typing.get_type_hints(f).get("a"),
    "unwrap": lambda f: inspect.unwrap(f) is f,
    "partial": lambda f: functools.partial(f, 3)(),
    "isfunction": inspect.isfunction,
    "getclosurevars": lambda f: inspect.getclosurevars(f).nonlocals,
    "vars": lambda f: [*vars(f)],
}.items():
    CASES[f"function: {_name}"] = _function_case(_ask)

# --- caches -------------------------------------------------------------------------------------


def _cache_case(maxsize: int | None, keyed: str, *, typed: bool = False) -> Case:
    def case() -> Iterator[Asked]:
        state = {"v": 1}
        calls: list[Any] = []

        class Owner:
            pass

        @functools.lru_cache(maxsize=maxsize, typed=typed)
        def cached(key: Any, more: int = 0) -> Any:
            calls.append(1)
            return [state["v"]]

        key = {"number": 1, "text": "a", "object": Owner(), "tuple": (1, "b"), "function": len}[
            keyed
        ]
        asked = asking(lambda: (cached(key), cached(key, more=2)))

        def counted(x: torch.Tensor) -> Any:
            return x * 2, cached.cache_info()

        for change in (
            lambda: None,
            lambda: state.update(v=2),
            cached.cache_clear,
            lambda: cached("other"),
            lambda: [cached(n) for n in (7, 8, 9)],
            lambda: state.update(v=3),
            cached.cache_clear,
            lambda: cached(key),
        ):
            change()
            yield asked, (_X,)
            yield counted, (_X,)
            yield asking(lambda: (len(calls), cached.cache_info())), (_X,)

    return case


for _size in (None, 0, 1, 2, 128):
    for _keyed in ("number", "text", "tuple", "function"):
        CASES[f"lru_cache of {_size}, by {_keyed}"] = _cache_case(_size, _keyed)
CASES["lru_cache, typed"] = _cache_case(2, "number", typed=True)
CASES["lru_cache by object"] = _cache_case(4, "object")


def _cached_property_case() -> Iterator[Asked]:
    class Owner:
        number = 1

        @functools.cached_property
        def value(self) -> int:
            return self.number

    owner = Owner()
    asked = asking(lambda: owner.value)
    yield asked, (_X,)
    owner.number = 2
    yield asked, (_X,)
    del owner.value
    yield asked, (_X,)
    owner.value = 5
    yield asked, (_X,)
    Owner.value = property(lambda self: 6)  # type: ignore[assignment]
    yield asked, (_X,)


CASES["cached_property"] = _cached_property_case


def _dispatch_case() -> Iterator[Asked]:
    @functools.singledispatch
    def described(value: Any) -> str:
        return "any"

    asked = asking(lambda: (described(1), described(True), described("a"), described([1])))
    yield asked, (_X,)
    described.register(int, lambda value: "int")
    yield asked, (_X,)
    described.register(numbers.Number, lambda value: "number")
    yield asked, (_X,)
    described.register(collections.abc.Sequence, lambda value: "sequence")
    yield asked, (_X,)
    described.register(bool, lambda value: "bool")
    yield asked, (_X,)


CASES["singledispatch"] = _dispatch_case

# --- weak references ----------------------------------------------------------------------------


class _Held:
    def __init__(self, number: int) -> None:
        self.number = number


def _weak_case(make: Callable[[Any, Any], Any], ask: Callable[[Any], Any]) -> Case:
    def case() -> Iterator[Asked]:
        held = [_Held(1), _Held(2)]
        weak = make(*held)
        asked = asking(lambda: ask(weak))
        yield asked, (_X,)
        held.pop()
        gc.collect()
        yield asked, (_X,)
        held.clear()
        gc.collect()
        yield asked, (_X,)

    return case


_WEAK: dict[str, tuple[Callable[[Any, Any], Any], dict[str, Callable[[Any], Any]]]] = {
    "ref": (
        lambda a, b: weakref.ref(b),
        {
            "called": lambda r: r() is None,
            "number": lambda r: r().number,
            "repr": lambda r: "dead" in repr(r),
            "equal": lambda r: r == weakref.ref(r) if r() is None else 0,
        },
    ),
    "proxy": (
        lambda a, b: weakref.proxy(b),
        {"number": lambda p: p.number, "bool": bool, "hasattr": lambda p: hasattr(p, "number")},
    ),
    "WeakSet": (
        lambda a, b: weakref.WeakSet([a, b]),
        {
            "len": len,
            "sum": lambda s: sum(one.number for one in s),
            "list": lambda s: len([*s]),
            "bool": bool,
            "copy": lambda s: len(s.copy()),
        },
    ),
    "WeakKeyDictionary": (
        lambda a, b: weakref.WeakKeyDictionary({a: 1, b: 2}),
        {
            "len": len,
            "values": lambda d: sorted(d.values()),
            "keys": lambda d: len([*d.keys()]),
            "items": lambda d: sorted(v for _, v in d.items()),
        },
    ),
    "WeakValueDictionary": (
        lambda a, b: weakref.WeakValueDictionary({"a": a, "b": b}),
        {
            "len": len,
            "get": lambda d: d.get("b") is None,
            "in": lambda d: "b" in d,
            "item": lambda d: d["b"].number,
            "keys": lambda d: sorted(d.keys()),
            "values": lambda d: sorted(v.number for v in d.values()),
        },
    ),
    "WeakMethod": (
        lambda a, b: weakref.ref(b),
        {"count": lambda r: weakref.getweakrefcount(r()) if r() is not None else -1},
    ),
}
for _kind, (_make, _asks) in _WEAK.items():
    for _name, _ask in _asks.items():
        CASES[f"{_kind}: {_name}"] = _weak_case(_make, _ask)

# --- identity -----------------------------------------------------------------------------------


def _identity_case(ask: Callable[[Any, Any], Any]) -> Case:
    def case() -> Iterator[Asked]:
        first, second = _Held(1), _Held(2)
        seen = {id(first): "first", first: "object"}

        def asked(x: torch.Tensor, value: Any, number: int) -> Any:
            return x + 1, ask(value, seen), id(value) == number, number == hash(value)

        for value in (first, second, first):
            yield asked, (_X, value, id(first))

    return case


for _name, _ask in {
    "id as a key": lambda v, seen: seen.get(id(v), "none"),
    "in": lambda v, seen: id(v) in seen,
    "object as a key": lambda v, seen: seen.get(v, "none"),
    # Other objects may lie as far from a border of 32 bytes as the first: by chance.
    "parity": lambda v, seen: (
        id(v) % 32 == min(seen, key=lambda k: type(k) is not int) % 32 and v is [*seen][1]
    ),
    "text": lambda v, seen: str(id(v)) == str(next(iter(seen))),
    "memo": lambda v, seen: {id(v): v.number}[id(v)],
    "is": lambda v, seen: v is [k for k in seen if type(k) is not int][0],  # noqa: RUF015
    "repr": lambda v, seen: repr(v) == repr([*seen][1]),
}.items():
    CASES[f"identity: {_name}"] = _identity_case(_ask)

# --- enums, dataclasses, named tuples -----------------------------------------------------------


def _enum_case() -> Iterator[Asked]:
    class Color(enum.Enum):
        RED = 1
        BLUE = 2

        def shown(self) -> str:
            return self.name

    for ask in (
        lambda: [*Color],
        lambda: [*Color.__members__],
        lambda: [m.value for m in Color.__members__.values()],
        lambda: [n for n, _ in Color.__members__.items()],
        lambda: Color(1),
        lambda: Color["RED"],
        lambda: Color.RED.shown(),
        lambda: len(Color),
        lambda: Color.RED in Color,
        lambda: getattr(Color, "GREEN", "none"),
        lambda: Color.RED.value,
        lambda: Color(3),
    ):
        asked = asking(ask)
        yield asked, (_X,)
        Color.shown = lambda self: "patched"  # type: ignore[method-assign]
        yield asked, (_X,)
        Color._value2member_map_[3] = Color.BLUE
        yield asked, (_X,)
        del Color._value2member_map_[3]


CASES["enum"] = _enum_case


def _dataclass_case() -> Iterator[Asked]:
    @dataclasses.dataclass
    class Data:
        a: int = 1
        b: list[int] = dataclasses.field(default_factory=list)

    owner = Data()
    for ask in (
        lambda: [f.name for f in dataclasses.fields(owner)],
        lambda: dataclasses.asdict(owner),
        lambda: dataclasses.astuple(owner),
        lambda: owner == Data(),
        lambda: repr(owner),
        lambda: dataclasses.replace(owner, a=5).b,
        lambda: Data().a,
        lambda: dataclasses.is_dataclass(owner),
    ):
        asked = asking(ask)
        yield asked, (_X,)
        owner.a += 1
        yield asked, (_X,)
        owner.b.append(1)
        yield asked, (_X,)
        Data.a = 7
        yield asked, (_X,)
        del owner.a
        yield asked, (_X,)
        owner.a = 1


CASES["dataclass"] = _dataclass_case


def cache_cases() -> dict[str, Case]:
    """All cases by name."""
    return CASES
