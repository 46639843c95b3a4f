"""Python values that a package holds, as JSON: numbers by their bits, the rest by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import torch

_PLAIN = (type(None), bool, int, str)


def is_value(value: Any) -> bool:
    """Whether a package can hold the value."""
    if type(value) in (tuple, list, torch.Size):
        return all(map(is_value, value))
    return type(value) in _PLAIN or type(value) in _ENCODERS


def encode(value: object) -> object:
    """The value as JSON. Raises TypeError for one that a package cannot hold."""
    if type(value) in _PLAIN:
        return value
    found = _ENCODERS.get(type(value))
    if found is None:
        raise TypeError(f"a package holds no {type(value).__qualname__}")
    name, to_json = found
    return {name: to_json(value)}


def decode(data: object) -> object:
    """The value that `encode` was given. Raises KeyError, TypeError, ValueError for other data."""
    if not isinstance(data, dict):
        return data
    ((name, content),) = data.items()
    return _DECODERS[name](content)


def is_same(one: Any, other: Any) -> bool:
    """Whether both are the same value: floats by their bits, and nothing equal to another type."""
    if type(one) is not type(other):
        return False
    if type(one) in (tuple, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    if type(one) in (float, complex):
        return bool(_ENCODERS[type(one)][1](one) == _ENCODERS[type(one)][1](other))
    return bool(one == other)


def dtype_named(name: str) -> torch.dtype:
    """The dtype of a name. Raises ValueError."""
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"no dtype {name!r}")
    return found


def name_of(value: torch.dtype | torch.memory_format | torch.layout) -> str:
    """Its name in `torch`."""
    return str(value).rpartition(".")[2]


# --- private ---------------------------------------------------------------------------------


def _named(kind: type) -> Callable[[str], object]:
    def find(name: str) -> object:
        found = getattr(torch, name, None)
        if not isinstance(found, kind):
            raise ValueError(f"torch has no {kind.__name__} {name!r}")
        return found

    return find


def _bits(number: float) -> str:
    return struct.pack(">d", number).hex()


def _float(bits: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(bits))[0])


def _items(values: Any) -> list[object]:
    return [encode(value) for value in values]


_ENCODERS: dict[type, tuple[str, Callable[[Any], Any]]] = {
    float: ("float", _bits),
    complex: ("complex", lambda value: [_bits(value.real), _bits(value.imag)]),
    tuple: ("tuple", _items),
    list: ("list", _items),
    torch.Size: ("size", list),
    torch.dtype: ("dtype", name_of),
    torch.device: ("device", str),
    torch.memory_format: ("memory_format", name_of),
    torch.layout: ("layout", name_of),
}
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "float": _float,
    "complex": lambda parts: complex(*map(_float, parts)),
    "tuple": lambda items: tuple([decode(item) for item in items]),
    "list": lambda items: [decode(item) for item in items],
    "size": torch.Size,
    "dtype": dtype_named,
    "device": torch.device,
    "memory_format": _named(torch.memory_format),
    "layout": _named(torch.layout),
}
