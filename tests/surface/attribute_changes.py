"""Attributes that come, change and go at each level of the lookup, and each way to ask for them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import operator
import types
from abc import ABC
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from tests.surface.asking import Asked, Case


class Place(NamedTuple):
    """owner: what is asked. put: gives `owner.a` a value at this level. drop: takes it away."""

    owner: Any
    put: Callable[[Any], None]
    drop: Callable[[], None]


def _on(owner: Any, target: Any) -> Place:
    """The attribute of `target`."""
    return Place(owner, lambda value: setattr(target, "a", value), lambda: delattr(target, "a"))


def _plain() -> type:
    class Base:
        pass

    class Middle(Base):
        pass

    class Plain(Middle):
        pass

    return Plain


def _of_instance() -> Place:
    owner = _plain()()
    return _on(owner, owner)


def _of_class() -> Place:
    cls = _plain()
    return _on(cls(), cls)


def _of_base() -> Place:
    cls = _plain()
    return _on(cls(), cls.__mro__[2])


def _of_class_itself() -> Place:
    cls = _plain()
    return _on(cls, cls)


def _of_base_of_class() -> Place:
    cls = _plain()
    return _on(cls, cls.__mro__[2])


def _metaclass() -> tuple[type, type]:
    class Meta(type):
        pass

    class OfMeta(metaclass=Meta):
        pass

    return Meta, OfMeta


def _of_metaclass() -> Place:
    meta, cls = _metaclass()
    return _on(cls, meta)


def _instance_of_metaclass() -> Place:
    meta, cls = _metaclass()
    return _on(cls(), meta)


def _slot() -> Place:
    class Slotted:
        __slots__ = ("a",)

    owner = Slotted()
    return _on(owner, owner)


def _slot_of_base() -> Place:
    class Slotted:
        __slots__ = ("a",)

    class Derived(Slotted):
        pass

    owner = Derived()
    return _on(owner, owner)


def _method_on(cls: type, name: str, make: Callable[[Any], Any]) -> Place:
    return Place(cls(), lambda v: setattr(cls, name, make(v)), lambda: delattr(cls, name))


def _getattr_of_class() -> Place:
    def make(value: Any) -> Any:
        def look_up(self: Any, name: str) -> Any:
            if name == "a":
                return value
            raise AttributeError(name)

        return look_up

    return _method_on(_plain(), "__getattr__", make)


def _getattribute_of_base() -> Place:
    def make(value: Any) -> Any:
        def look_up(self: Any, name: str) -> Any:
            return value if name == "a" else object.__getattribute__(self, name)

        return look_up

    cls = _plain()
    place = _method_on(cls.__mro__[1], "__getattribute__", make)
    return Place(cls(), place.put, place.drop)


def _property() -> Place:
    return _method_on(_plain(), "a", lambda value: property(lambda self: value))


class _Reading:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __get__(self, owner: Any, cls: type) -> Any:
        return self.value


class _Storing(_Reading):
    def __set__(self, owner: Any, value: Any) -> None:
        raise AttributeError("a")


def _descriptor() -> Place:
    return _method_on(_plain(), "a", _Reading)


def _data_descriptor() -> Place:
    cls = _plain()
    owner = cls()
    owner.a = "beneath"
    return Place(owner, lambda v: setattr(cls, "a", _Storing(v)), lambda: delattr(cls, "a"))


def _cached_property() -> Place:
    cls = _plain()
    owner = cls()

    def put(value: Any) -> None:
        cls.a = functools.cached_property(lambda self: value)  # type: ignore[attr-defined]
        cls.a.__set_name__(cls, "a")  # type: ignore[attr-defined]
        vars(owner).pop("a", None)

    def drop() -> None:
        del cls.a  # type: ignore[attr-defined]
        vars(owner).pop("a", None)

    return Place(owner, put, drop)


def _of_module_object() -> Place:
    owner = types.ModuleType("swept")
    return _on(owner, owner)


def _getattr_of_module() -> Place:
    owner = types.ModuleType("swept")

    def put(value: Any) -> None:
        def look_up(name: str) -> Any:
            if name == "a":
                return value
            raise AttributeError(f"module 'swept' has no attribute {name!r}")

        owner.__getattr__ = look_up  # type: ignore[method-assign]

    return Place(owner, put, lambda: delattr(owner, "__getattr__"))


def _of_function() -> Place:
    def owner() -> None:
        pass

    return _on(owner, owner)


def _of_bound_method() -> Place:
    class WithMethod:
        def method(self) -> None:
            pass

    return _on(WithMethod().method, WithMethod.method)


def _of_lambda_made_by_wraps() -> Place:
    def wrapped() -> None:
        pass

    owner = functools.wraps(wrapped)(lambda: None)
    return _on(owner, owner)


def _made(cls: Any, *args: Any) -> Callable[[], Place]:
    def make() -> Place:
        owner = cls(*args)
        return _on(owner, owner)

    return make


def _derived(base: Any, *args: Any) -> Callable[[], Place]:
    def make() -> Place:
        cls = type(f"Of{base.__name__}", (base,), {})
        owner = cls(*args)
        return _on(owner, owner)

    return make


def _class_of_derived(base: Any, *args: Any) -> Callable[[], Place]:
    def make() -> Place:
        cls = type(f"Of{base.__name__}", (base,), {})
        return _on(cls(*args), cls)

    return make


def _dataclass() -> Place:
    @dataclasses.dataclass
    class Data:
        b: int = 1

    owner = Data()
    return _on(owner, owner)


def _enum_member() -> Place:
    class Color(enum.Enum):
        RED = "red"

    return _on(Color.RED, Color.RED)


def _enum_class() -> Place:
    class Color(enum.Enum):
        RED = "red"

    return _on(Color.RED, Color)


def _named_tuple() -> Place:
    class Pair(NamedTuple):
        b: int

    return _on(Pair(1), Pair)


def _lru_cache() -> Place:
    owner = functools.lru_cache(lambda: None)
    return _on(owner, owner)


class _Net(nn.Module):
    pass


def _plain_of_net() -> Place:
    owner = _Net()
    return Place(owner, lambda v: owner.__dict__.update(a=v), lambda: owner.__dict__.pop("a"))


def _numbers(value: str) -> torch.Tensor:
    return torch.full((2,), float(len(value)))


def _buffer() -> Place:
    owner = _Net()

    def put(value: Any) -> None:
        if "a" in owner._buffers:
            owner.a = _numbers(value)
        else:
            owner.register_buffer("a", _numbers(value))

    return Place(owner, put, lambda: delattr(owner, "a"))


def _parameter() -> Place:
    owner = _Net()
    return Place(
        owner,
        lambda v: setattr(owner, "a", nn.Parameter(_numbers(v), requires_grad=False)),
        lambda: delattr(owner, "a"),
    )


def _submodule() -> Place:
    owner = _Net()
    return Place(
        owner,
        lambda v: setattr(owner, "a", nn.Identity() if len(v) == 3 else nn.ReLU()),
        lambda: delattr(owner, "a"),
    )


def _buffer_that_is_none() -> Place:
    owner = _Net()
    owner.register_buffer("a", None)
    return Place(
        owner, lambda v: setattr(owner, "a", _numbers(v)), lambda: setattr(owner, "a", None)
    )


def _class_of_net() -> Place:
    cls = type("OfNet", (_Net,), {})
    return _on(cls(), cls)


def _getattr_of_net() -> Place:
    cls: Any = type("OfNet", (_Net,), {})

    def put(value: Any) -> None:
        def look_up(self: Any, name: str) -> Any:
            return value if name == "a" else nn.Module.__getattr__(self, name)

        cls.__getattr__ = look_up

    return Place(cls(), put, lambda: delattr(cls, "__getattr__"))


def _module_list() -> Place:
    owner = nn.ModuleList([nn.ReLU()])
    return _on(owner, owner)


PLACES: dict[str, Callable[[], Place]] = {
    "instance": _of_instance,
    "class": _of_class,
    "base": _of_base,
    "class itself": _of_class_itself,
    "base of class": _of_base_of_class,
    "metaclass": _of_metaclass,
    "metaclass of instance's class": _instance_of_metaclass,
    "slot": _slot,
    "slot of base": _slot_of_base,
    "__getattr__": _getattr_of_class,
    "__getattribute__ of base": _getattribute_of_base,
    "property": _property,
    "descriptor": _descriptor,
    "data descriptor": _data_descriptor,
    "cached_property": _cached_property,
    "module": _of_module_object,
    "__getattr__ of module": _getattr_of_module,
    "function": _of_function,
    "function of bound method": _of_bound_method,
    "function by wraps": _of_lambda_made_by_wraps,
    "SimpleNamespace": _made(types.SimpleNamespace),
    "exception": _made(ValueError, "text"),
    "partial": _made(functools.partial, len),
    "dataclass": _dataclass,
    "enum member": _enum_member,
    "enum class": _enum_class,
    "class of named tuple": _named_tuple,
    "lru_cache": _lru_cache,
    **{
        f"{base.__name__} subclass": _derived(base, *args)
        for base, *args in (
            *((dict,), (list,), (tuple,), (set,), (frozenset,), (OrderedDict,), (deque,)),
            *((defaultdict, list), (str, "text"), (int, 5), (float, 0.5), (bytes, b"text")),
            *((ABC,), (Exception,), (types.SimpleNamespace,), (functools.partial, len)),
        )
    },
    **{
        f"class of {base.__name__} subclass": _class_of_derived(base, *args)
        for base, *args in ((dict,), (list,), (tuple,), (set,), (str, "text"), (int, 5))
    },
    "plain of nn.Module": _plain_of_net,
    "buffer": _buffer,
    "parameter": _parameter,
    "submodule": _submodule,
    "buffer that is None": _buffer_that_is_none,
    "class of nn.Module": _class_of_net,
    "__getattr__ of nn.Module": _getattr_of_net,
    "nn.ModuleList": _module_list,
}


def _tried(o: Any) -> Any:
    try:
        return o.a
    except AttributeError as problem:
        return str(problem)


def _through_super(o: Any) -> Any:
    return super(type(o), o).a


def _matched(o: Any) -> Any:
    match o:
        case object(a=found):
            return found
    return "none"


def _looped(o: Any) -> Any:
    for name in vars(o):
        if name == "a":
            return "found"
    return "none"


def _none_of_mro(o: Any) -> Any:
    return [("a" in vars(cls)) for cls in type(o).__mro__]


WAYS: dict[str, Callable[[Any], Any]] = {
    "o.a": lambda o: o.a,
    "try": _tried,
    "getattr": lambda o: getattr(o, "a"),  # noqa: B009
    "getattr with default": lambda o: getattr(o, "a", "none"),
    "hasattr": lambda o: hasattr(o, "a"),
    "attrgetter": operator.attrgetter("a"),
    "type": lambda o: type(o).a,
    "hasattr of type": lambda o: hasattr(type(o), "a"),
    "__class__": lambda o: getattr(o.__class__, "a", "none"),
    "vars get": lambda o: vars(o).get("a"),
    "vars item": lambda o: vars(o)["a"],
    "in vars": lambda o: "a" in vars(o),
    "in __dict__": lambda o: "a" in o.__dict__,
    "in __dict__ keys": lambda o: "a" in o.__dict__.keys(),  # noqa: SIM118
    "len of vars": lambda o: len([name for name in vars(o) if name == "a"]),
    "loop over vars": _looped,
    "sorted vars": lambda o: [n for n in sorted(vars(o)) if n == "a"],
    "items of vars": lambda o: [n for n, _ in vars(o).items() if n == "a"],
    "vars of type": lambda o: vars(type(o)).get("a", "none"),
    "in vars of type": lambda o: "a" in vars(type(o)),
    "in __dict__ of type": lambda o: "a" in type(o).__dict__,
    "vars along the MRO": _none_of_mro,
    "dir": lambda o: "a" in dir(o),
    "dir of type": lambda o: "a" in dir(type(o)),
    "getattr_static": lambda o: inspect.getattr_static(o, "a", "none"),
    "object.__getattribute__": lambda o: object.__getattribute__(o, "a"),
    "type.__getattribute__": lambda o: type.__getattribute__(type(o), "a"),
    "__getattribute__": lambda o: o.__getattribute__("a"),
    "super": _through_super,
    "match": _matched,
    "callable": lambda o: callable(getattr(o, "a", None)),
    "getmembers": lambda o: [n for n, _ in inspect.getmembers(o) if n == "a"],
}


def _case(place: Callable[[], Place], way: Callable[[Any], Any]) -> Case:
    def case() -> Iterator[Asked]:
        owner, put, drop = place()

        def asked(x: torch.Tensor) -> Any:
            try:
                return x + 1, way(owner)
            except Exception as problem:
                return x + 2, type(problem), str(problem)

        def given(x: torch.Tensor, o: Any) -> Any:
            return x + 1, way(o)

        for function, args in ((asked, ()), (given, (owner,))):
            x = torch.ones(2)
            yield function, (x, *args)
            put("one")
            yield function, (x, *args)
            put("three")
            yield function, (x, *args)
            drop()
            yield function, (x, *args)

    return case


def attribute_cases() -> dict[str, Case]:
    """Each way to ask at each place: six changes each."""
    return {
        f"{place}: {way}": _case(make, ask)
        for place, make in PLACES.items()
        for way, ask in WAYS.items()
    }
