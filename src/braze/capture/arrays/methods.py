"""What fake arrays of arrays are asked by name: methods, operators and facts."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

import braze.capture.arrays.indexing
import braze.capture.arrays.reductions
import braze.capture.arrays.torch_numpy  # noqa: F401
from braze.capture.arrays.calls import find
from braze.capture.arrays.fake_array import FakeArray, refusal
from braze.capture.arrays.ufuncs import write
from braze.capture.arrays.values import Arrays, computes
from braze.compat.numpy.interface import ARRAY, numpy

# Facts that NumPy says of an array like it.
_FACTS = ("shape", "ndim", "size", "itemsize", "nbytes", "dtype", "strides")
# Attributes that are arrays.
_PARTS = ("T", "mT", "real", "imag")
_NUMBERS = {"__float__": float, "__int__": int, "__complex__": complex}


def _fact(name: str) -> property:
    def read(self: FakeArray) -> Any:
        return getattr(self.like, name)

    def written(self: FakeArray, value: Any) -> None:
        raise refusal(f"setting ndarray.{name}")

    return property(_own(read, name), _own(written, name))


def _part(name: str) -> property:
    def read(self: FakeArray) -> Any:
        return self.arrays.call.attribute(name, self)

    def written(self: FakeArray, value: Any) -> None:
        raise refusal(f"setting ndarray.{name}")

    return property(_own(read, name), _own(written, name))


def _method(name: str) -> Callable[..., Any]:
    def call(self: FakeArray, *args: object, **kwargs: object) -> object:
        return self.arrays.call.method(name, self, args, kwargs)

    return _own(call, name)


def _operator(name: str) -> Callable[..., Any]:
    def call(self: FakeArray, *others: object) -> object:
        return self.arrays.operator(name, self, *others)

    return _own(call, name)


def _reflected(name: str) -> Callable[..., Any]:
    def call(self: FakeArray, other: object) -> object:
        return self.arrays.operator(f"__{name[3:]}", other, self)

    return _own(call, name)


def _number(name: str, cls: type) -> Callable[..., Any]:
    def call(self: FakeArray) -> object:
        if self.like.size != 1 or self.like.ndim:
            raise refusal(f"{cls.__name__}() of an array")
        return self.arrays.interpreter.call(cls, self.arrays.tensor(self))

    return _own(call, name)


def _refused(name: str) -> Callable[..., Any]:
    def call(self: FakeArray, *args: object, **kwargs: object) -> object:
        raise refusal(f"{type(self.like).__name__}.{name}")

    return _own(call, name)


def _refused_attribute(name: str) -> property:
    return property(_refused(name))


def _own(function: Any, name: str) -> Any:
    """A function of a name; capture calls it as its own."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = FakeArray.__module__
    return function


_KEPT = frozenset(
    "__class__ __getattribute__ __init__ __new__ __init_subclass__ __subclasshook__ __doc__ "
    "__setattr__ __delattr__ __getattr__ __hash__ __bool__ __len__ __iter__ __class_getitem__ "
    "__dir__".split()
)


def _made(name: str) -> property | Callable[..., object]:
    if name in _FACTS:
        return _fact(name)
    if name in _PARTS:
        return _part(name)
    if name in _NUMBERS:
        return _number(name, _NUMBERS[name])
    if name.startswith("__r") and find(f"__{name[3:]}") is not None:
        return _reflected(name)
    if find(name) is not None and name.startswith("__"):
        return _operator(name)
    if name in ("item", "tolist", "fill") or find(f"ndarray.{name}") is not None:
        return _method(name)
    if type(getattr(ARRAY, name)) is types.GetSetDescriptorType:
        return _refused_attribute(name)
    return _refused(name)


def _setitem(self: FakeArray, key: object, value: object) -> None:
    self.arrays.call.store(self, key, value)


def _item(self: FakeArray, *args: object) -> object:
    if args or self.like.size != 1:
        raise refusal("ndarray.item of several elements")
    interpreter, tensor = self.arrays.interpreter, self.arrays.tensor(self)
    return interpreter.call(torch.Tensor.item, tensor)


def _tolist(self: FakeArray) -> object:
    return self.arrays.interpreter.call(torch.Tensor.tolist, self.arrays.tensor(self))


@computes("ndarray.fill")
def _fill(
    arrays: Arrays, found: object, args: tuple[Any, ...], kwargs: dict[str, object]
) -> object:
    owner, value = args
    if type(value) is FakeArray:
        value = arrays.tensor(value)
    return write(arrays, owner, value)


if numpy is not None:
    for _name in dir(ARRAY):
        if _name not in _KEPT:
            type.__setattr__(FakeArray, _name, _made(_name))
    type.__setattr__(FakeArray, "__setitem__", _own(_setitem, "__setitem__"))
    type.__setattr__(FakeArray, "item", _own(_item, "item"))
    type.__setattr__(FakeArray, "tolist", _own(_tolist, "tolist"))
