"""What belongs to the process, to modules, classes as such, functions and caches changes."""

from __future__ import annotations

import abc
import builtins
import collections
import contextvars
import datetime
import decimal
import gc
import importlib
import logging
import numbers
import operator
import os
import sys
import threading
import types
import typing
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.surface.asking import Asked, Case, asking

CASES: dict[str, Case] = {}
_X = torch.ones(2)


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
        asked = asking(ask)
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
            asked = asking(lambda: check(cls() if inside else value, cls, kind))
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
        asked = asking(ask)
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

    asked = asking(lambda: vars(Made()) if type(Made()) is Made else "other")
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


def process_cases() -> dict[str, Case]:
    """All cases by name."""
    return CASES
