"""An object is asked in compiled code for the attributes that eager asks it for, and no others."""

from __future__ import annotations

import collections
import decimal
import operator
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

asked: list[str] = []


class Watched:
    """Notes what it is asked for."""

    def __getattribute__(self, name: str) -> Any:
        if name != "__dict__":  # of an object without the attribute: a guard asks again
            asked.append(name)
        return object.__getattribute__(self, name)

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter((1, 2))

    def __getitem__(self, key: Any) -> Any:
        return key

    def __contains__(self, key: Any) -> bool:
        return key == 1

    def __call__(self, *args: Any) -> int:
        return len(args)

    def __enter__(self) -> int:
        return 1

    def __exit__(self, *problem: Any) -> None:
        return None

    def __index__(self) -> int:
        return 1

    def __add__(self, other: Any) -> int:
        return 1

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: Any) -> bool:
        return True

    def __lt__(self, other: Any) -> bool:
        return False

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        asked.append("repr")
        return "watched"

    def __reversed__(self) -> Any:
        return iter((2, 1))


def _entered(watched: Any) -> Any:
    with watched as value:
        return value


# Beside a decimal, which makes capture look into all that C code is given.
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "len": len,
    "iter": list,
    "tuple": tuple,
    "set": set,
    "unpack": lambda w: [*w],
    "getitem": lambda w: w[3],
    "contains": lambda w: 1 in w,
    "call": lambda w: w(1, 2),
    "with": _entered,
    "int": int,
    "index": operator.index,
    "range": range,
    "item of a list": lambda w: [1, 2, 3][w],
    "add": lambda w: w + 1,
    "radd": lambda w: [w] + [1],
    "hash": hash,
    "eq": lambda w: w == 1,
    "ne": lambda w: w is not None,
    "key": lambda w: {w: 1}[w],
    "member": lambda w: w in {w},
    "sorted": lambda w: len(sorted([w, w])),
    "min": lambda w: min(w, w) is w,
    "bool": bool,
    "not": lambda w: not w,
    "all": lambda w: all([w, w]),
    "sum": sum,
    "zip": lambda w: list(zip(w, w)),
    "map": lambda w: list(map(str, w)),
    "repr": repr,
    "enumerate": lambda w: list(enumerate(w)),
    "reversed": lambda w: list(reversed(w)),
    "isinstance": lambda w: isinstance(w, Watched),
    "callable": callable,
    "type": lambda w: type(w) is Watched,
    "id": lambda w: id(w) == id(w),
    "getattr": lambda w: getattr(w, "missing", 1),
    "hasattr": lambda w: hasattr(w, "missing"),
    "join": lambda w: ",".join(map(str, w)),
    "append": lambda w: [[].append(w)],
    "extend": lambda w: operator.iadd([], w),
    "deque": lambda w: len(collections.deque(w)),
    "dict value": lambda w: len({"a": w}),
    "tuple equality": lambda w: (w, 1) == (w, 1),
    "list index": lambda w: [1, w].index(w),
    "weak reference": lambda w: weakref.ref(w)() is w,
    "match": lambda w: _matched(w),
}


def _matched(value: Any) -> str:
    match value:
        case int():
            return "int"
        case [first, second]:
            return f"{first} {second}"
        case {"a": _}:
            return "mapping"
        case Watched():
            return "watched"
    return "other"


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("made_here", [False, True])
def test_objects_are_asked_as_in_eager(name: str, made_here: bool) -> None:
    question = PROGRAMS[name]
    amount = decimal.Decimal(1)

    def program(x: torch.Tensor, given: Any, amount: Any) -> Any:
        watched = Watched() if made_here else given
        y = x + 1
        return y, question(watched), amount

    def told(function: Any) -> Any:
        asked.clear()
        y, answer, _ = function(torch.ones(2), Watched(), amount)
        assert y.tolist() == [2, 2]
        return answer, [*asked]

    expected = told(program)
    compiled = braze.compile(program, backend="eager")
    assert [told(compiled) for _ in range(2)] == [expected, expected]
