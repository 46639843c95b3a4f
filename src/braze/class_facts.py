"""Facts of classes, computed once a class and forgotten with it.

`functools.lru_cache` keeps the classes that it is asked about alive, and with a class of the
program's everything that its methods' closures hold: a model's parameters among it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

_Fact = TypeVar("_Fact")


def fact_of_class(compute: Callable[[type], _Fact]) -> Callable[[type], _Fact]:
    """Remember what a function of a class gives for as long as the class lives. The fact must
    follow from what no program changes: bases, flags, members of C."""
    known: weakref.WeakKeyDictionary[type, _Fact] = weakref.WeakKeyDictionary()

    @functools.wraps(compute)
    def fact(cls: type) -> _Fact:
        try:
            return known[cls]
        except KeyError:
            return known.setdefault(cls, compute(cls))

    return fact
