"""Annotations of functions and classes, which Python 3.14 computes when they are asked for, and the
parameters of generic ones.

`object.__annotate__` is then a function that computes them; `object.__annotations__` calls it.
"""

from __future__ import annotations

import types
import typing
from typing import Any

from braze.compat.python.bytecode_versions import BYTECODE

_NAMES = (
    "TypeVar",
    "ParamSpec",
    "TypeVarTuple",
    "ParamSpecArgs",
    "ParamSpecKwargs",
    "TypeAliasType",
)
# The classes of type parameters and aliases: from Python 3.12 on written in C. They never change.
TYPE_PARAMETERS: frozenset[type] = frozenset(
    cls
    for cls in (getattr(typing, name, None) for name in _NAMES)
    if isinstance(cls, type) and isinstance(cls.__repr__, types.WrapperDescriptorType)
)


def annotations_of(owner: Any) -> object:
    """What makes up an object's annotations, computing none: the function that computes them, else
    a dict, None where there are none."""
    if BYTECODE.annotates_lazily and owner.__annotate__ is not None:
        return owner.__annotate__
    return owner.__annotations__ or None


def set_annotations(owner: Any, found: Any) -> None:
    """Give an object what `annotations_of` found."""
    if callable(found):
        owner.__annotate__ = found
    elif found is not None:
        owner.__annotations__ = found
