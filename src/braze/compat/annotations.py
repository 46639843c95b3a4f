"""Annotations of functions and classes, which Python 3.14 computes when they are asked for.

`object.__annotate__` is then a function that computes them; `object.__annotations__` calls it.
"""

from __future__ import annotations

from typing import Any

from braze.compat.bytecode_versions import BYTECODE


def annotations_of(owner: Any) -> Any:
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
