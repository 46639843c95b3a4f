"""What belongs to the process, to modules, classes as such, functions and caches changes."""

from __future__ import annotations

import abc
import builtins
import collections
import contextvars
import dataclasses
import datetime
import decimal
import enum
import functools
import gc
import importlib
import inspect
import logging
import numbers
import operator
import os
import sys
import threading
import types
import typing
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.surface.asking import Asked, Case

CASES: dict[str, Case] = {}
_X = torch.ones(2)


def _asking(ask: Callable[[], Any]) -> Callable[[torch.Tensor], Any]:
    def asked(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            return y, ask()
        except Exception as problem:
            return y + 1, type(problem), str(problem)

    return asked


def _set(target: Any, name: str, value: Any) -> Callable[[], Callable[[], None]]:
    """A change of an attribute that says how it is undone."""

    def change() -> Callable[[], None]:
        missing = object()
        own = name in ("__class__", "__name__", "__qualname__", "__annotations__")
        before = getattr(target, name) if own else vars(target).get(name, missing)
        setattr(target, name, value)
        if before is missing:
            return lambda: delattr(target, name)
        return lambda: setattr(target, name, before)

    return change


def _add(name: str, ask: Callable[[], Any], *changes: Callable[[], Callable[[], None]]) -> None:
    """A question, and changes that are made one after the other and undone at last."""

    def case() -> Iterator[Asked]:
        asked = _asking(ask)
        undo: list[Callable[[], None]] = []
        try:
            yield asked, (_X,)
            for change in changes:
                undo.append(change())
                yield asked, (_X,)
            while undo:
                undo.pop()()
                yield asked, (_X,)
        finally:
            while undo:
                undo.pop()()

    assert name not in CASES
    CASES[name] = case


# --- the process -------------------------------------------------------------------------------


def _environment(name: str, value: str) -> Callable[[], Callable[[], None]]:
    def change() -> Callable[[], None]:
        os.environ[name] = value
        return lambda: os.environ.pop(name)  # type: ignore[return-value]

    return change


def _directory() -> Callable[[], None]:
    before = os.getcwd()
    os.chdir("/")
    return lambda: os.chdir(before)


def _recursion_limit() -> Callable[[], None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 17)
    return lambda: sys.setrecursionlimit(before)


def _digits() -> Callable[[], None]:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(5000)
    return lambda: sys.set_int_max_str_digits(before)


def _switch_interval() -> Callable[[], None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.25)
    return lambda: sys.setswitchinterval(before)


def _no_collector() -> Callable[[], None]:
    gc.disable()
    return gc.enable


def _thresholds() -> Callable[[], None]:
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 13)
    return lambda: gc.set_threshold(*before)


def _filter() -> Callable[[], None]:
    before = warnings.filters[:]
    warnings.simplefilter("error", FutureWarning)

    def undo() -> None:
        warnings.filters[:] = before  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]

    return undo


def _precision() -> Callable[[], None]:
    before = decimal.getcontext().prec
    decimal.getcontext().prec = 5
    return lambda: setattr(decimal.getcontext(), "prec", before)


def _appended(target: list[Any], value: Any) -> Callable[[], Callable[[], None]]:
    def change() -> Callable[[], None]:
        target.append(value)
        return lambda: target.remove(value)

    return change


def _entered(space: Any, key: Any, value: Any) -> Callable[[], Callable[[], None]]:
    def change() -> Callable[[], None]:
        missing = object()
        before = space.get(key, missing)
        space[key] = value
        if before is missing:
            return lambda: space.pop(key)  # type: ignore[no-any-return]
        return lambda: space.update({key: before})

    return change


_FLAG = _environment("SWEPT", "one")
_add("os.environ.get", lambda: os.environ.get("SWEPT"), _FLAG)
_add("os.environ item", lambda: os.environ["SWEPT"], _FLAG)
_add("in os.environ", lambda: "SWEPT" in os.environ, _FLAG)
_add("os.getenv", lambda: os.getenv("SWEPT", "none"), _FLAG)
_add("dict of os.environ", lambda: dict(os.environ).get("SWEPT"), _FLAG)
_add("os.environ keys", lambda: "SWEPT" in [*os.environ], _FLAG)
_add("os.getcwd", os.getcwd, _directory)
_add("os.path.abspath", lambda: os.path.abspath("a"), _directory)
_add("os.path.exists", lambda: os.path.exists("etc"), _directory)
_add("os.path.isdir", lambda: os.path.isdir("etc"), _directory)
_add("sys.getrecursionlimit", lambda: sys.getrecursionlimit() % 1000 > 0, _recursion_limit)
_add("sys.get_int_max_str_digits", sys.get_int_max_str_digits, _digits)
_add("sys.getswitchinterval", sys.getswitchinterval, _switch_interval)
_add("gc.isenabled", gc.isenabled, _no_collector)
_add("gc.get_threshold", gc.get_threshold, _thresholds)
_add("sys.path", lambda: "/swept" in sys.path, _appended(sys.path, "/swept"))
_add("len of sys.path", lambda: len([p for p in sys.path if p == "/q"]), _appended(sys.path, "/q"))
_add("sys attribute", lambda: hasattr(sys, "swept"), _set(sys, "swept", 1))
_add("sys.argv", lambda: sys.argv[-1] == "swept", _appended(sys.argv, "swept"))
_add("sys.dont_write_bytecode", lambda: sys.dont_write_bytecode, _set(sys, "ps1", "> "))
_add("sys.displayhook", lambda: getattr(sys, "ps1", "none"), _set(sys, "ps1", "> "))
_add("warnings.filters", lambda: len(warnings.filters) and warnings.filters[0][0], _filter)
_add("decimal division", lambda: str(decimal.Decimal(1) / decimal.Decimal(3)), _precision)
_add("decimal precision", lambda: decimal.getcontext().prec, _precision)
_add("decimal sqrt", lambda: decimal.Decimal(2).sqrt(), _precision)
_add("decimal from text", lambda: +decimal.Decimal("1.23456789"), _precision)

# --- modules ------------------------------------------------------------------------------------

_MODULE = types.ModuleType("swept_module")
_MODULE.value = 1  # type: ignore[attr-defined]
_LOADED = _entered(sys.modules, "swept_module", _MODULE)


def _import() -> Any:
    import swept_module

    return swept_module.value


def _import_from() -> Any:
    from swept_module import value

    return value


def _import_missing() -> Any:
    from collections import swept

    return swept


_add("in sys.modules", lambda: "swept_module" in sys.modules, _LOADED)
_add("sys.modules get", lambda: sys.modules.get("swept_module"), _LOADED)
_add("sys.modules item", lambda: sys.modules["swept_module"].value, _LOADED)
_add("import", _import, _LOADED)
_add("from import", _import_from, _LOADED)
_add("from import of what is missing", _import_missing, _set(collections, "swept", 2))
_add("import_module", lambda: importlib.import_module("swept_module").value, _LOADED)
_add("find_spec", lambda: importlib.util.find_spec("swept_module") is None, _LOADED)
_add("import forbidden", _import, _LOADED, _entered(sys.modules, "swept_module", None))
_add("other module", _import, _LOADED, _set(_MODULE, "value", 3))
_add("__import__", lambda: __import__("swept_module").value, _LOADED)
_add("function of module", lambda: operator.index(1), _set(operator, "index", lambda v: 5))
_add("builtin in builtins", lambda: len([1]), _set(builtins, "len", lambda v: 9))
_add("new builtin", lambda: swept_builtin, _set(builtins, "swept_builtin", 4))  # type: ignore[name-defined]  # noqa: F821
_add("global hides builtin", lambda: abs(-1), _entered(globals(), "abs", lambda v: "hidden"))
_add("global", lambda: swept_global, _entered(globals(), "swept_global", 4))  # type: ignore[name-defined]  # noqa: F821
_add("globals()", lambda: "swept_global" in globals(), _entered(globals(), "swept_global", 4))
_add("method of module's class", lambda: logging.Logger("a").level, _set(logging, "swept", 1))

# --- logging, threads, contexts -----------------------------------------------------------------

_LOGGER = logging.getLogger("tests.surface.swept")


def _level(logger: logging.Logger, level: int) -> Callable[[], Callable[[], None]]:
    def change() -> Callable[[], None]:
        before = logger.level
        logger.setLevel(level)
        return lambda: logger.setLevel(before)

    return change


def _disabled() -> Callable[[], None]:
    logging.disable(logging.CRITICAL)
    return lambda: logging.disable(logging.NOTSET)


_DEBUG = _level(_LOGGER, logging.DEBUG)
_add("isEnabledFor", lambda: _LOGGER.isEnabledFor(logging.DEBUG), _DEBUG, _disabled)
_add("getEffectiveLevel", _LOGGER.getEffectiveLevel, _DEBUG)
_add("level of getLogger", lambda: logging.getLogger("tests.surface.swept").level, _DEBUG)
_add("logger's level by name", lambda: logging.getLevelName(_LOGGER.level), _DEBUG)
_add("root's level", lambda: _LOGGER.getEffectiveLevel(), _level(logging.getLogger(), 5))
_add("handlers", _LOGGER.hasHandlers, _appended(_LOGGER.handlers, logging.NullHandler()))

_VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("swept", default="none")


def _in_context() -> Callable[[], None]:
    token = _VARIABLE.set("set")
    return lambda: _VARIABLE.reset(token)


def _thread_name() -> Callable[[], None]:
    thread = threading.current_thread()
    before = thread.name
    thread.name = "swept"
    return lambda: setattr(thread, "name", before)


_LOCAL = threading.local()
_add("ContextVar.get", _VARIABLE.get, _in_context)
_add("copy_context", lambda: contextvars.copy_context().get(_VARIABLE), _in_context)
_add("current_thread", lambda: threading.current_thread().name == "swept", _thread_name)
_add("active_count", lambda: threading.active_count() > 100, _thread_name)
_add("threading.local", lambda: getattr(_LOCAL, "a", "none"), _set(_LOCAL, "a", 1))
_add("datetime.now", lambda: datetime.datetime.now().year > 9000, _in_context)

# --- classes as such ----------------------------------------------------------------------------


class _Thing:
    def method(self) -> str:
        return "method"


class _Other:
    pass


class _Hooked(abc.ABC):  # noqa: B024
    @classmethod
    def __subclasshook__(cls, other: type) -> Any:
        return hasattr(other, "hooked") or NotImplemented


@typing.runtime_checkable
class _Protocol(typing.Protocol):
    def spoken(self) -> str: ...


@typing.runtime_checkable
class _DataProtocol(typing.Protocol):
    attribute: int


class _Meta(type):
    answer = False

    def __instancecheck__(cls, other: Any) -> bool:
        return _Meta.answer

    def __subclasscheck__(cls, other: Any) -> bool:
        return _Meta.answer


class _OfMeta(metaclass=_Meta):
    pass


_THING = _Thing()


def _register_cases() -> None:
    """A class that is registered stays so: each run has classes of its own."""
    checks: dict[str, Callable[[Any, type, type], bool]] = {
        "isinstance": lambda value, cls, kind: isinstance(value, kind),
        "issubclass": lambda value, cls, kind: issubclass(cls, kind),
        "isinstance of tuple": lambda value, cls, kind: isinstance(value, (int, kind)),
        "isinstance of union": lambda value, cls, kind: isinstance(value, int | kind),
        "__instancecheck__": lambda value, cls, kind: type(kind).__instancecheck__(kind, value),
        "__subclasscheck__": lambda value, cls, kind: kind.__subclasscheck__(cls),
    }

    def add(name: str, check: Callable[[Any, type, type], bool], *, inside: bool) -> None:
        def case() -> Iterator[Asked]:
            kind = abc.ABCMeta("Kind", (), {})
            cls = type("Registered", (), {})
            value = cls()
            asked = _asking(lambda: check(cls() if inside else value, cls, kind))
            yield asked, (_X,)
            kind.register(cls)
            yield asked, (_X,)

        CASES[f"registered, {'inside' if inside else 'outside'}: {name}"] = case

    for name, check in checks.items():
        add(name, check, inside=False)
        add(name, check, inside=True)


_register_cases()
_SPOKEN = _set(_Thing, "spoken", lambda self: "words")
_add("__subclasshook__ by class", lambda: isinstance(_THING, _Hooked), _SPOKEN)
_add("protocol by class", lambda: isinstance(_THING, _Protocol), _SPOKEN)
_add("protocol, issubclass", lambda: issubclass(_Thing, _Protocol), _SPOKEN)
_add("protocol, inside", lambda: isinstance(_Thing(), _Protocol), _SPOKEN)
_add(
    "protocol by instance",
    lambda: isinstance(_THING, _DataProtocol),
    _set(_THING, "attribute", 1),
)
_add("__instancecheck__", lambda: isinstance(_THING, _OfMeta), _set(_Meta, "answer", True))
_add("__subclasscheck__", lambda: issubclass(_Thing, _OfMeta), _set(_Meta, "answer", True))
_add(
    "Hashable", lambda: isinstance(_THING, collections.abc.Hashable), _set(_Thing, "__hash__", None)
)
_add(
    "Iterable",
    lambda: isinstance(_THING, collections.abc.Iterable),
    _set(_Thing, "__iter__", lambda self: iter(())),
)
_add("Sized", lambda: isinstance(_Thing(), collections.abc.Sized), _set(_Thing, "__len__", len))
_add("Callable", lambda: callable(_THING), _set(_Thing, "__call__", lambda self: 1))
_add("Number", lambda: isinstance(_THING, numbers.Number))
_add("SupportsFloat", lambda: isinstance(_THING, typing.SupportsFloat))
_add("type of instance", lambda: type(_THING), _set(_THING, "__class__", _Other))
_add("__class__", lambda: _THING.__class__, _set(_THING, "__class__", _Other))
_add(
    "isinstance after __class__",
    lambda: isinstance(_THING, _Thing),
    _set(_THING, "__class__", _Other),
)
_add("method after __class__", lambda: _THING.method(), _set(_THING, "__class__", _Other))
_add("__name__ of class", lambda: _Thing.__name__, _set(_Thing, "__name__", "Renamed"))
_add("__qualname__ of class", lambda: _Thing.__qualname__, _set(_Thing, "__qualname__", "Renamed"))
_add("__module__ of class", lambda: _Thing.__module__, _set(_Thing, "__module__", "renamed"))
_add("__doc__ of class", lambda: _Thing.__doc__, _set(_Thing, "__doc__", "words"))
_add(
    "__annotations__",
    lambda: dict(_Thing.__annotations__),
    _set(_Thing, "__annotations__", {"a": 1}),
)


def _bases_case() -> Iterator[Asked]:
    first, second = type("First", (), {"a": 1}), type("Second", (), {"a": 2})
    cls = type("Derived", (first,), {})
    value = cls()
    for ask in (
        lambda: value.a,
        lambda: cls.a,
        lambda: cls.__bases__,
        lambda: cls.__mro__,
        lambda: cls.mro(),
        lambda: isinstance(value, second),
        lambda: issubclass(cls, first),
        lambda: super(cls, value).a,
        lambda: first.__subclasses__(),
        lambda: len(second.__subclasses__()),
    ):
        asked = _asking(ask)
        yield asked, (_X,)
        cls.__bases__ = (second,)
        yield asked, (_X,)
        cls.__bases__ = (first,)
        yield asked, (_X,)
        again = type("Again", (second,), {})
        yield asked, (_X,)
        del again
        gc.collect()


CASES["__bases__"] = _bases_case


def _made_case() -> Iterator[Asked]:
    """What makes an instance is replaced, level by level."""

    class Meta(type):
        pass

    class Made(metaclass=Meta):
        pass

    asked = _asking(lambda: vars(Made()) if type(Made()) is Made else "other")
    yield asked, (_X,)
    Made.__init__ = lambda self: setattr(self, "a", 1)  # type: ignore[method-assign]
    yield asked, (_X,)
    Made.__new__ = lambda cls: object.__new__(cls)  # type: ignore[assignment]
    yield asked, (_X,)
    Meta.__call__ = lambda cls: "called"  # type: ignore[method-assign]
    yield asked, (_X,)
    del Meta.__call__
    yield asked, (_X,)
    del Made.__init__
    yield asked, (_X,)


CASES["what makes instances"] = _made_case

# --- functions ---------------------------------------------------------------------------------


def _function_case(ask: Callable[[Any], Any]) -> Case:
    def case() -> Iterator[Asked]:
        cell = "first"

        def function(a: int = 1, *, b: int = 2) -> Any:
            return a, b, cell

        def other(a: int = 1, *, b: int = 2) -> Any:
            return "other", a, b, cell

        asked = _asking(lambda: ask(function))
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
        asked = _asking(lambda: (cached(key), cached(key, more=2)))

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
            yield _asking(lambda: (len(calls), cached.cache_info())), (_X,)

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
    asked = _asking(lambda: owner.value)
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

    asked = _asking(lambda: (described(1), described(True), described("a"), described([1])))
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
        asked = _asking(lambda: ask(weak))
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
    "parity": lambda v, seen: id(v) % 32 == min(seen, key=lambda k: type(k) is not int) % 32,
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
        asked = _asking(ask)
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
        asked = _asking(ask)
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


def process_cases() -> dict[str, Case]:
    """All cases by name."""
    return CASES
