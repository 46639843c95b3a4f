"""How guards say what differs."""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from braze.compat.numpy.interface import ARRAY
from braze.ir.captured.guard import Guard

# What a relation compares beside its own source: the values of `compared_sources`, in their order.
Values: TypeAlias = Sequence[Any]

_LONGEST = 80


def short_text(value: object) -> str:
    """A value's text, cut at 80 characters.

    Tensors, arrays and modules are named, not printed: to print one reads it, and an optimizer's
    state has hundreds as its keys.
    """
    text = _text(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def mismatch(guard: Guard, what: str, expected: object, actual: object) -> str:
    """The sentence that all of them share."""
    return f"'{guard.source}' {what} mismatch. expected {expected}, actual {actual}"


def _text(value: Any) -> str:
    """At least the first 80 characters of a value's text."""
    cls = type(value)
    if issubclass(type(value), torch.Tensor):
        return f"{cls.__name__}{list(value.shape)}"
    if cls is ARRAY:
        return f"{cls.__name__}{list(value.shape)}"
    if issubclass(type(value), nn.Module):
        return f"{cls.__name__}()"
    if cls is list:
        return f"[{_joined(map(_text, value))}]"
    if cls is tuple:
        return f"({_joined(map(_text, value))}{',' * (len(value) == 1)})"
    if cls is dict:
        return "{" + _joined(f"{_text(key)}: {_text(held)}" for key, held in value.items()) + "}"
    shows = next(vars(base)["__repr__"] for base in cls.__mro__ if "__repr__" in vars(base))
    if type(shows) is types.FunctionType and shows.__module__.partition(".")[0] not in _LIBRARIES:
        return object.__repr__(value)  # the program's own method may do anything
    return repr(value)


_LIBRARIES = ("torch", "enum", "braze")


def _joined(texts: Iterable[str]) -> str:
    """With commas, as many as are read."""
    found: list[str] = []
    room = _LONGEST
    for text in texts:
        found.append(text)
        room -= len(text) + 2
        if room < 0:
            break
    return ", ".join(found)
