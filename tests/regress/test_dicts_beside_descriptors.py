"""Entries of `obj.__dict__` under names that the class has a slot, a property or a descriptor for:
two values under one name, of which attribute lookup finds the class's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.errors import BrazeWarning


class _Base:
    pass


class _Slotted(_Base):
    __slots__ = ("extra",)
    extra: Any


class _Hiding(_Slotted):
    __slots__ = ("extra",)


class _Property:
    def __init__(self) -> None:
        self._p: Any = 1
        self.__dict__["p"] = 3

    @property
    def p(self) -> Any:
        return self._p

    @p.setter
    def p(self, value: Any) -> None:
        self._p = value

    @p.deleter
    def p(self) -> None:
        self._p = "deleted"


class _Descriptor:
    def __get__(self, owner: Any, cls: type) -> Any:
        return owner.__dict__.get("d", "none")

    def __set__(self, owner: Any, value: Any) -> None:
        owner.__dict__["d"] = [value]

    def __delete__(self, owner: Any) -> None:
        owner.__dict__["d"] = "deleted"


class _Described:
    d: Any = _Descriptor()


class _Hooked:
    __slots__ = ("a", "log")
    a: Any
    log: Any

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "a":
            self.log.append(value)


class _Answering(_Base):
    __slots__ = ("extra",)
    extra: Any

    def __getattr__(self, name: str) -> Any:
        if name == "extra":
            return "answered"
        raise AttributeError(name)


class _Coded(Exception):
    __slots__ = ("code",)

    @property
    def q(self) -> str:
        return "property"


def _state(value: Any) -> Any:
    """A value, and of an object its dict and its slots."""
    if isinstance(value, tuple):
        return [_state(item) for item in value]
    if type(value).__module__ != __name__:
        return value
    slots = []
    for base in type(value).__mro__:
        for name in vars(base).get("__slots__", ()):
            try:
                slots.append((base.__name__, name, vars(base)[name].__get__(value)))
            except AttributeError:
                slots.append((base.__name__, name, "empty"))
    return type(value).__name__, dict(getattr(value, "__dict__", {})), slots


def _made_by_update(x: torch.Tensor) -> Any:
    made = _Slotted()
    made.__dict__.update(extra=1)
    return made


def _made_with_both(x: torch.Tensor) -> Any:
    made = _Slotted()
    made.extra = 2
    made.__dict__["extra"] = 1
    return made, made.extra, vars(made)["extra"]


def _made_with_hidden_slot(x: torch.Tensor) -> Any:
    made = _Hiding()
    made.extra = 2
    vars(_Slotted)["extra"].__set__(made, 3)
    made.__dict__["extra"] = 1
    return made, made.extra


def _made_exception(x: torch.Tensor) -> Any:
    made: Any = _Coded("a")
    made.code = 3
    made.__dict__["q"] = 4
    return made, made.q


@pytest.mark.parametrize(
    "program", [_made_by_update, _made_with_both, _made_with_hidden_slot, _made_exception]
)
def test_objects_made_in_the_frame(program: Callable[[torch.Tensor], Any]) -> None:
    def whole(x: torch.Tensor) -> Any:
        return x + 1, program(x)

    x = torch.zeros(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = braze.compile(whole, backend="eager", fullgraph=True)(x)[1]
    assert _state(made) == _state(program(x))


def _update(o: Any) -> Any:
    o.__dict__.update(extra=1)
    return o.__dict__["extra"], getattr(o, "extra", "none")


def _write_both(o: Any) -> Any:
    o.extra = 4
    o.__dict__["extra"] = 5
    return o.extra, vars(o)["extra"]


def _set_default(o: Any) -> Any:
    return o.__dict__.setdefault("extra", 9)


def _pop(o: Any) -> Any:
    return o.__dict__.pop("extra", "none")


def _delete_from_dict(o: Any) -> Any:
    vars(o)["extra"] = 3
    del o.__dict__["extra"]
    return "extra" in o.__dict__


def _delete_from_slot(o: Any) -> Any:
    o.extra = 3
    del o.extra
    return hasattr(o, "extra")


def _delete_what_may_be_missing(o: Any) -> Any:
    try:
        del o.extra
    except AttributeError as problem:
        return str(problem)
    return hasattr(o, "extra")


def _copy(o: Any) -> Any:
    return copy.copy(o)


def _delete_answered(o: Any) -> Any:
    before = o.extra
    o.__dict__["extra"] = 7
    o.extra = 4
    del o.extra
    return before, o.extra


def _read_property(o: Any) -> Any:
    return o.p, o.__dict__["p"], vars(o).get("p"), "p" in o.__dict__


def _set_property(o: Any) -> Any:
    o.p = 8
    o.__dict__["p"] = 9
    return o.p, o.__dict__["p"], list(vars(o).items())


def _delete_property(o: Any) -> Any:
    del o.p
    return o._p, o.__dict__.get("p")


def _delete_beside_property(o: Any) -> Any:
    del o.__dict__["p"]
    return o.p


def _other_dict(o: Any) -> Any:
    o.__dict__ = {"p": 2, "_p": 4}
    return o.p


def _clear(o: Any) -> Any:
    o.__dict__.clear()
    return hasattr(o, "p")


def _use_descriptor(o: Any) -> Any:
    o.d = 3
    before = o.d
    del o.d
    return before, o.d, o.__dict__["d"]


def _set_by_hook(o: Any) -> Any:
    o.a = 1
    return o.a


def _slotted() -> Any:
    return _Slotted()


def _slotted_with_both() -> Any:
    made = _Slotted()
    made.extra, made.__dict__["extra"] = "slot", "dict"
    return made


def _hooked() -> Any:
    made = _Hooked()
    made.log = []
    return made


def _nothing(o: Any) -> None:
    pass


def _change_dict(o: Any) -> None:
    for name in {"extra", "p", "d"} & vars(o).keys():
        o.__dict__[name] = "other"


def _change_attribute(o: Any) -> None:
    setattr(o, "p" if isinstance(o, _Property) else "extra", "other")


def _drop(o: Any) -> None:
    for name in {"extra", "d"} & vars(o).keys():
        del o.__dict__[name]


_OF_SLOTS = (_update, _write_both, _set_default, _pop, _delete_from_dict, _delete_from_slot)
_OF_PROPERTIES = (_read_property, _set_property, _delete_property, _delete_beside_property)


@pytest.mark.parametrize(
    ("program", "make"),
    [
        *[(program, make) for program in _OF_SLOTS for make in (_slotted, _slotted_with_both)],
        (_delete_what_may_be_missing, _slotted),
        (_delete_what_may_be_missing, _slotted_with_both),
        (_copy, _slotted_with_both),
        (_delete_answered, _Answering),
        *[(program, _Property) for program in (*_OF_PROPERTIES, _other_dict, _clear, _copy)],
        (_use_descriptor, _Described),
        (_set_by_hook, _hooked),
    ],
)
def test_objects_from_outside(program: Callable[[Any], Any], make: Callable[[], Any]) -> None:
    """Also after either of the two was changed from outside, which the guards must notice."""

    def whole(x: torch.Tensor, o: Any) -> Any:
        x.add_(1)
        return program(o)

    compiled = braze.compile(whole, backend="eager")
    changes = [_nothing, _nothing, _nothing]
    if make is not _hooked:
        changes += [_change_dict, _change_attribute, _drop, _nothing]
    for change in changes:
        left, right = make(), make()
        change(left)
        change(right)
        x, y = torch.zeros(2), torch.zeros(2)
        expected = _state(whole(x, left))
        with warnings.catch_warnings():
            warnings.simplefilter("error", BrazeWarning)
            assert _state(compiled(y, right)) == expected
        assert _state(right) == _state(left) and torch.equal(x, y)
