"""Containers, and subclasses of builtin ones, in the hands of what reads them, by protocol or past
it. Contents change, and the class comes to have methods of its own and loses them."""

from __future__ import annotations

import bisect
import collections
import copy
import functools
import heapq
import itertools
import json
import math
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.surface.asking import Asked, Case

Maker = Callable[[], Any]


def _class(base: type, name: str = "") -> type:
    return type(f"Of{name or base.__name__}", (base,), {})


# base class -> its arguments, and what changes its contents, by the base's own method.
_BASES: dict[type, tuple[tuple[Any, ...], Callable[[Any], Any]]] = {
    set: (({1, 2},), lambda v: set.add(v, 3)),
    frozenset: (((1, 2),), lambda v: None),
    dict: (({"a": 1, "b": 2},), lambda v: dict.__setitem__(v, "c", 3)),
    collections.OrderedDict: (
        ({"a": 1, "b": 2},),
        lambda v: collections.OrderedDict.move_to_end(v, "a"),
    ),
    collections.defaultdict: ((int, {"a": 1}), lambda v: dict.__setitem__(v, "c", 3)),
    collections.Counter: (("abb",), lambda v: dict.__setitem__(v, "c", 3)),
    list: (([1, 2],), lambda v: list.append(v, 3)),
    tuple: (((1, 2),), lambda v: None),
    collections.deque: (([1, 2],), lambda v: collections.deque.append(v, 3)),
    str: (("ab",), lambda v: None),
    bytes: ((b"ab",), lambda v: None),
    int: ((2,), lambda v: None),
    float: ((2.5,), lambda v: None),
    collections.UserDict: (({"a": 1, "b": 2},), lambda v: v.data.update(c=3)),
    collections.UserList: (([1, 2],), lambda v: v.data.append(3)),
    collections.ChainMap: (({"a": 1}, {"b": 2}), lambda v: v.maps[1].update(c=3)),
    types.SimpleNamespace: ((), lambda v: setattr(v, "a", 1)),
    object: ((), lambda v: None),
}

# What a class comes to have.
_METHODS: dict[str, Any] = {
    "__iter__": lambda self: iter([7, 8]),
    "__len__": lambda self: 2,
    "__contains__": lambda self, key: True,
    "__getitem__": lambda self, key: [5, 6][key] if type(key) is int else 9,
    "__reversed__": lambda self: iter([8, 7]),
    "__bool__": lambda self: False,
    "__eq__": lambda self, other: True,
    "__ne__": lambda self, other: True,
    "__lt__": lambda self, other: True,
    "__hash__": lambda self: 11,
    "__missing__": lambda self, key: 12,
    "__str__": lambda self: "shown",
    "__repr__": lambda self: "repr",
    "__format__": lambda self, spec: "formatted",
    "__index__": lambda self: 1,
    "__int__": lambda self: 3,
    "__float__": lambda self: 3.5,
    "__bytes__": lambda self: b"own",
    "__add__": lambda self, other: "added",
    "__radd__": lambda self, other: "added to",
    "__and__": lambda self, other: "and",
    "__or__": lambda self, other: "or",
    "__ior__": lambda self, other: "in place",
    "__neg__": lambda self: "negative",
    "__abs__": lambda self: "absolute",
    "__round__": lambda self, *digits: "rounded",
    "__trunc__": lambda self: 4,
    "__floor__": lambda self: 4,
    "__ceil__": lambda self: 4,
    "__call__": lambda self: "called",
    "__enter__": lambda self: "entered",
    "__exit__": lambda self, *args: None,
    "__next__": lambda self: 13,
    "__length_hint__": lambda self: 2,
    "__copy__": lambda self: "copied",
    "__deepcopy__": lambda self, memo: "copied deeply",
    "__reduce_ex__": lambda self, protocol: (str, ("reduced",)),
    "__dir__": lambda self: ["own"],
    "__sizeof__": lambda self: 14,
    "keys": lambda self: ["z"],
    "values": lambda self: ["value"],
    "items": lambda self: [("k", "v")],
    "get": lambda self, key, default=None: "got",
    "copy": lambda self: "copied",
    "index": lambda self, key: 15,
    "count": lambda self, key: 16,
    "upper": lambda self: "UPPER",
    "bit_length": lambda self: 17,
    "pop": lambda self, *args: 18,
    "__class_getitem__": classmethod(lambda cls, key: "class item"),
    "__instancecheck__": lambda self, other: True,
    "__set_name__": lambda self, owner, name: None,
    "__match_args__": ("a",),
}


def _looped(v: Any) -> Any:
    return [item for item in v]  # noqa: C416


def _unpacked(v: Any) -> Any:
    first, *rest = v
    return first, rest


def _updated(base: type) -> Callable[[Any], Any]:
    def update(v: Any) -> Any:
        made = base()
        made.update(v)
        return made

    return update


def _extended(v: Any) -> Any:
    made = [0]
    made.extend(v)
    made += v
    return made


def _matched_sequence(v: Any) -> Any:
    match v:
        case [first, second]:
            return first, second
        case {"a": found}:
            return found
    return "none"


def _in_with(v: Any) -> Any:
    with v as entered:
        return entered


def _positional(*args: Any) -> Any:
    return args


def _keywords(**kwargs: Any) -> Any:
    return kwargs


def _by_next(v: Any) -> Any:
    return next(iter(v))


USES: dict[str, Callable[[Any], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "str": str,
    "repr": repr,
    "ascii": ascii,
    "bytes": bytes,
    "int": int,
    "float": float,
    "complex": complex,
    "bool": bool,
    "len": len,
    "hash": lambda v: hash(v) if type(v).__hash__ is not object.__hash__ else 0,
    "iter": lambda v: [*iter(v)],
    "next": _by_next,
    "next itself": lambda v: next(v),
    "reversed": lambda v: [*reversed(v)],
    "sorted": sorted,
    "sum": sum,
    "min": min,
    "max": max,
    "any": any,
    "all": all,
    "abs": abs,
    "round": round,
    "divmod": lambda v: divmod(v, 2),
    "pow": lambda v: pow(v, 2),
    "chr": chr,
    "bin": bin,
    "range": lambda v: [*range(v)],
    "callable": callable,
    "called": lambda v: v(),
    "format": format,
    "format with spec": lambda v: f"{v:>9}",
    "f-string": lambda v: f"{v} {v!r}",
    "%s": lambda v: "%s" % (v,),  # noqa: UP031
    "% of it": lambda v: "%s %s" % v,  # noqa: UP031
    "str.format": lambda v: "{} {!r}".format(v, v),  # noqa: UP032
    "str.join": lambda v: "-".join(map(str, v)),
    "str.join of it": lambda v: "-".join(v),
    "enumerate": lambda v: [*enumerate(v)],
    "zip": lambda v: [*zip(v, v)],
    "map": lambda v: [*map(str, v)],
    "filter": lambda v: [*filter(None, v)],
    "loop": _looped,
    "unpacked": _unpacked,
    "[*v]": lambda v: [*v],
    "(*v,)": lambda v: (*v,),
    "{*v}": lambda v: {*v},
    "{**v}": lambda v: {**v},
    "f(*v)": lambda v: _positional(*v),
    "f(**v)": lambda v: _keywords(**v),
    "set.update": _updated(set),
    "dict.update": _updated(dict),
    "OrderedDict.update": _updated(collections.OrderedDict),
    "extend": _extended,
    "set.union": lambda v: {0}.union(v),
    "set.intersection": lambda v: {1, 7}.intersection(v),
    "set.difference": lambda v: {1, 7}.difference(v),
    "set.symmetric_difference": lambda v: {1, 7}.symmetric_difference(v),
    "set.issubset": lambda v: {1}.issubset(v),
    "set.issuperset": lambda v: {1, 2}.issuperset(v),
    "set.isdisjoint": lambda v: {7}.isdisjoint(v),
    "set |": lambda v: {0} | v,
    "set & reflected": lambda v: v & {1, 7},
    "set -": lambda v: {1, 7} - v,
    "set ^": lambda v: {1, 7} ^ v,
    "set <=": lambda v: {1} <= v,
    "dict |": lambda v: {"q": 0} | v,
    "v |": lambda v: v | {"q": 0},
    "dict.fromkeys": dict.fromkeys,
    "keys &": lambda v: v.keys() & {"a", "z"},
    "keys": lambda v: [*v.keys()],
    "values": lambda v: [*v.values()],
    "items": lambda v: [*v.items()],
    "get": lambda v: v.get("q"),
    "copy": lambda v: v.copy(),
    "in": lambda v: 1 in v,
    "in by text": lambda v: "a" in v,
    "not in": lambda v: 99 not in v,
    "item": lambda v: v[0],
    "item -1": lambda v: v[-1],
    "item by text": lambda v: v["a"],
    "missing item": lambda v: v["q"],
    "slice": lambda v: v[:1],
    "index of list": lambda v: [10, 20, 30][v],
    "index of v": lambda v: v.index(1),
    "count of v": lambda v: v.count(1),
    "==": lambda v: v == 1,
    "== reflected": lambda v: [1, 2] == v,  # noqa: SIM300
    "!=": lambda v: v != 1,
    "<": lambda v: v < v,
    "+": lambda v: v + v,
    "+ reflected": lambda v: (0,) + v,
    "*": lambda v: v * 2,
    "-v": lambda v: -v,
    "if": lambda v: "true" if v else "false",
    "not": lambda v: not v,
    "dict key": lambda v: {v: 1}[v],
    "key of dict": lambda v: {1: "one", 2: "two", 11: "eleven"}.get(v),
    "member of set": lambda v: v in {1, 2, "ab"},
    "member of list": lambda v: v in [1, 2, "ab"],
    "list.index": lambda v: [0, v, 1].index(v),
    "list.count": lambda v: [1, 2, v].count(1),
    "list ==": lambda v: [v] == [1],
    "match": _matched_sequence,
    "with": _in_with,
    "Counter": collections.Counter,
    "deque": collections.deque,
    "OrderedDict": collections.OrderedDict,
    "ChainMap": lambda v: dict(collections.ChainMap(v)),
    "mappingproxy": lambda v: dict(types.MappingProxyType(v)),
    "chain": lambda v: [*itertools.chain(v, v)],
    "chain.from_iterable": lambda v: [*itertools.chain.from_iterable([v, v])],
    "islice": lambda v: [*itertools.islice(v, 1)],
    "accumulate": lambda v: [*itertools.accumulate(v)],
    "product": lambda v: [*itertools.product(v, v)],
    "reduce": lambda v: functools.reduce(lambda a, b: (a, b), v),
    "math.prod": math.prod,
    "math.fsum": math.fsum,
    "math.floor": math.floor,
    "math.ceil": math.ceil,
    "math.trunc": math.trunc,
    "math.sqrt": math.sqrt,
    "math.isfinite": math.isfinite,
    "nlargest": lambda v: heapq.nlargest(1, v),
    "bisect": lambda v: bisect.bisect([1, 2, 3], v),
    "bisect of v": lambda v: bisect.bisect(v, 1),
    "length_hint": operator.length_hint,
    "operator.index": operator.index,
    "operator.contains": lambda v: operator.contains(v, 1),
    "operator.countOf": lambda v: operator.countOf(v, 1),
    "operator.indexOf": lambda v: operator.indexOf(v, 1),
    "itemgetter": operator.itemgetter(0),
    "methodcaller": lambda v: operator.methodcaller("__len__")(v),
    "upper": lambda v: v.upper(),
    "startswith": lambda v: "ab".startswith(v),
    "split": lambda v: "xaby".split(v),
    "replace": lambda v: "xaby".replace(v, "-"),
    "bit_length": lambda v: v.bit_length(),
    "as_integer_ratio": lambda v: v.as_integer_ratio(),
    "isinstance": lambda v: isinstance(1, v),
    "class item": lambda v: type(v)["x"],
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "json.dumps": json.dumps,
    "tensor": torch.tensor,
    "view": lambda v: torch.ones(2).view(v),
    "zeros": lambda v: torch.zeros(v),
    "own __len__": lambda v: v.__len__(),
    "own __iter__": lambda v: [*v.__iter__()],
    "own __contains__": lambda v: v.__contains__(1),
    "own __eq__": lambda v: v.__eq__(1),
    "own __hash__": lambda v: v.__hash__() if type(v).__hash__ is not object.__hash__ else 0,
    "own __str__": lambda v: type(v).__str__(v) if type(v).__str__ is not object.__str__ else 0,
}

# How an object's address shows in what is compared.
_SHOWS_ADDRESS = {"str", "repr", "ascii", "format", "f-string", "%s", "str.format", "% of it"}


def _case(base: type, use: str, method: str, *, inside: bool) -> Case:
    args, change = _BASES[base]
    ask = USES[use]

    def case() -> Iterator[Asked]:
        cls = _class(base)
        owner = cls(*copy.deepcopy(args))

        def asked(x: torch.Tensor) -> Any:
            value = cls(*args) if inside else owner
            y = x + 1
            try:
                return y, ask(value)
            except Exception as problem:
                return x + 2, type(problem), str(problem)

        x = torch.ones(2)
        setattr(cls, method, _METHODS[method])
        yield asked, (x,)
        if not inside:
            change(owner)
        yield asked, (x,)
        delattr(cls, method)
        yield asked, (x,)
        setattr(cls, method, _METHODS[method])
        yield asked, (x,)

    return case


def _exact_case(base: type, use: str) -> Case:
    args, change = _BASES[base]
    ask = USES[use]

    def case() -> Iterator[Asked]:
        owner = base(*copy.deepcopy(args))

        def asked(x: torch.Tensor, v: Any) -> Any:
            y = x + 1
            try:
                return y, ask(v)
            except Exception as problem:
                return x + 2, type(problem), str(problem)

        x = torch.ones(2)
        yield asked, (x, owner)
        change(owner)
        yield asked, (x, owner)
        yield asked, (x, base(*copy.deepcopy(args)))

    return case


def _shows_address(base: type, use: str) -> bool:
    return use in _SHOWS_ADDRESS and base in (object, collections.ChainMap)


def container_cases() -> dict[str, Case]:
    """Each use of each subclass with each method that some use may ask, outside and inside."""
    cases: dict[str, Case] = {}
    for base in _BASES:
        for use in USES:
            if _shows_address(base, use):
                continue
            cases[f"{base.__name__}: {use}"] = _exact_case(base, use)
            for method in _METHODS:
                for inside in (False, True):
                    where = "inside" if inside else "outside"
                    name = f"{base.__name__} with {method}, {where}: {use}"
                    cases[name] = _case(base, use, method, inside=inside)
    return cases
