"""Values of many classes, from arguments, globals, closures, attributes and defaults: each is
guarded by all that the program read of it, so that another one of the class does not get the first
one's result."""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import pathlib
import re
import types
import typing
import uuid
import weakref

import numpy as np
import pytest
import torch

import braze

pytestmark = pytest.mark.filterwarnings("ignore")


class Kept:
    def __init__(self, k):
        self.k = k


HOLD = [Kept(1), Kept(2)]


class BASE:
    def go(self, x):
        return x * self.k


class SUB(BASE):
    def __init__(self, k):
        self.k = k

    def go(self, x):
        return super().go(x) + 1


class D:
    k = 1

    def __get__(self, owner, cls=None):
        return 5 if owner is None else owner.v


class H:
    d = D()

    def __init__(self, v):
        self.v = v


class E(enum.IntEnum):
    A = 1
    B = 2


def with_cause():
    error = ValueError()
    error.__cause__ = KeyError()
    return error


def module_with(k):
    made = types.ModuleType("made")
    made.k = k
    return made


CASES = {}
CASES["slice"] = (lambda s, x: x[s], [slice(1, 3), slice(0, 2), slice(None, None, 2)])
CASES["slice2"] = (lambda s, x: (x[s.start : s.stop], s.indices(3)), [slice(1, 3), slice(0, 2)])
CASES["exc"] = (
    lambda e, x: (x * len(e.args), str(e), repr(e)),
    [ValueError(1), ValueError(1, 2), KeyError("a")],
)
CASES["proxy"] = (
    lambda m, x: (x * m["a"], len(m), "b" in m),
    [types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2, "b": 1})],
)
CASES["views"] = (
    lambda v, x: (x * len(v), 3 in v, sum(v)),
    [{1: 2}.keys(), {3: 2, 1: 1}.keys(), {1: 3}.values()],
)
CASES["items"] = (lambda v, x: [x * k + w for k, w in v], [{1: 2}.items(), {3: 2, 1: 1}.items()])
CASES["ns"] = (lambda n, x: x * n.a, [types.SimpleNamespace(a=1), types.SimpleNamespace(a=2)])
CASES["ndarray"] = (
    lambda n, x: x * torch.from_numpy(n),
    [np.ones(4, dtype="f4"), np.ones(4, dtype="f4") * 2],
)
CASES["np64"] = (lambda n, x: x * n, [np.float64(1.5), np.float64(2.5), np.float32(3.5)])
CASES["npint"] = (lambda n, x: x * int(n), [np.int64(1), np.int64(2)])
CASES["dt"] = (lambda d, x: x * d.day, [datetime.date(2020, 1, 2), datetime.date(2020, 1, 3)])
CASES["td"] = (lambda d, x: x * d.total_seconds(), [datetime.timedelta(1), datetime.timedelta(2)])
CASES["frac"] = (lambda d, x: x * float(d), [fractions.Fraction(1, 2), fractions.Fraction(1, 3)])
CASES["dec"] = (lambda d, x: x * float(d), [decimal.Decimal("1.5"), decimal.Decimal("2.5")])
CASES["path"] = (
    lambda p, x: (x * len(str(p)), p.name, p.suffix),
    [pathlib.Path("a/b.c"), pathlib.Path("aa/bb.cc")],
)
CASES["match"] = (
    lambda m, x: (x * m.start(), m.group(1), m[0]),
    [re.match("(a)", "a"), re.search("(b)", "ab"), re.search("(.)b", "xaab")],
)
CASES["arr"] = (lambda a, x: x * a[0], [array.array("i", [1]), array.array("i", [2])])
CASES["bytearray"] = (lambda a, x: x * a[0] + len(a), [bytearray(b"a"), bytearray(b"bc")])
CASES["memview"] = (lambda a, x: x * a[0], [memoryview(b"a"), memoryview(b"bc")])
CASES["deque"] = (
    lambda a, x: x * a[0] + a.maxlen,
    [collections.deque([1], 3), collections.deque([2], 4)],
)
CASES["counter"] = (
    lambda a, x: x * a["z"] + a.total(),
    [collections.Counter("z"), collections.Counter("zzb")],
)
CASES["chain"] = (
    lambda a, x: (x * a["z"], a.maps),
    [collections.ChainMap({"z": 1}), collections.ChainMap({"y": 1}, {"z": 3})],
)
CASES["uuid"] = (lambda a, x: x * a.int, [uuid.UUID(int=1), uuid.UUID(int=2)])
CASES["strio"] = (lambda a, x: x * len(a.getvalue()), [io.StringIO("a"), io.StringIO("ab")])
CASES["complex"] = (lambda a, x: x * a, [1j, 2j, 0j, -0.0 + 1j])
CASES["property"] = (lambda p, x: p.fget(x), [property(lambda x: x * 2), property(lambda x: x * 3)])
CASES["static"] = (
    lambda p, x: p.__func__(x),
    [staticmethod(lambda x: x * 2), staticmethod(lambda x: x * 3)],
)
CASES["code"] = (
    lambda p, x: (x * p.co_argcount, p.co_name),
    [(lambda a: 1).__code__, (lambda a, b: 1).__code__],
)
CASES["size"] = (lambda p, x: x * p[0], [torch.Size([1]), torch.Size([2])])
CASES["finfo"] = (lambda p, x: x * p.eps, [torch.finfo(torch.float32), torch.finfo(torch.float16)])
CASES["alias"] = (
    lambda p, x: (x * len(typing.get_args(p)), typing.get_origin(p)),
    [list[int], dict[int, str], list[int]],
)
CASES["fset"] = (lambda p, x: x * len(p) + sum(p), [frozenset({1}), frozenset({2, 3})])
CASES["set"] = (lambda p, x: x * len(p) + (3 in p), [{1}, {2, 3}, {3}])
CASES["nested"] = (
    lambda p, x: x * p["a"][0]["b"][1],
    [{"a": [{"b": (1, 2)}]}, {"a": [{"b": (1, 3)}]}],
)
CASES["cls"] = (lambda p, x: x * p.k, [type("A", (), {"k": 1}), type("A", (), {"k": 2})])
CASES["desc"] = (lambda h, x: x * h.d, [H(1), H(2)])
CASES["enum"] = (lambda e, x: (x * e, e.name), [E.A, E.B])
CASES["lru"] = (
    lambda g, x: g(2) * x,
    [functools.lru_cache(lambda a: a * 2), functools.lru_cache(lambda a: a * 3)],
)
CASES["mslots"] = (
    lambda g, x: x * g.a,
    [dataclasses.make_dataclass("Q", ["a"], slots=True)(1)] * 1
    + [dataclasses.make_dataclass("Q", ["a"], slots=True)(2)],
)
CASES["gent"] = (
    lambda g, x: x + torch.rand(1, generator=g) * 0,
    [torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)],
)
CASES["range"] = (lambda g, x: x * len(g) + sum(g), [range(3), range(1, 4), range(0, 6, 2)])
CASES["ellipsis"] = (
    lambda g, x: x[g],
    [..., None, 0, 1, [0, 1], (0,), torch.tensor(1), torch.tensor([True, False, True, False])],
)
CASES["str"] = (lambda g, x: (x * len(g), g.upper(), g[0]), ["a", "bb", "é"])
CASES["bytes"] = (lambda g, x: (x * g[0], g.decode()), [b"a", b"b"])
CASES["partialm"] = (
    lambda g, x: g(x),
    [functools.partial(lambda x, k: x * k, k=2), functools.partial(lambda x, k: x * k, k=3)],
)
CASES["ordered"] = (
    lambda g, x: x * next(iter(g)),
    [collections.OrderedDict([(1, 1), (2, 2)]), collections.OrderedDict([(2, 1), (1, 2)])],
)
CASES["dictorder"] = (lambda g, x: x * next(iter(g)), [{1: 1, 2: 2}, {2: 2, 1: 1}])
CASES["missing"] = (
    lambda g, x: x * g["q"],
    [collections.defaultdict(lambda: 3), collections.defaultdict(lambda: 4)],
)
CASES["excg"] = (
    lambda g, x: x * len(g.exceptions),
    [ExceptionGroup("a", [ValueError()]), ExceptionGroup("a", [ValueError(), KeyError()])],
)
CASES["tb"] = (lambda g, x: x * (2 if g.__cause__ else 3), [ValueError(), with_cause()])
CASES["slices"] = (
    lambda s, x: (x.reshape(2, 2)[s], s),
    [(slice(0, 1), slice(1, 2)), (slice(0, 2), slice(0, 1)), (slice(None), 0)],
)
CASES["slobj"] = (
    lambda s, x: (s[0].start, x[s[0]]),
    [[slice(0, 1)], [slice(1, 3)], [slice(2, 3)], [slice(1, 4, 2)]],
)
CASES["views2"] = (
    lambda v, x: (list(v), [x * a for a in v]),
    [{1: 2}.keys(), {3: 2, 1: 1}.keys(), {1: 3}.values(), {1: 4}.values()],
)
CASES["views3"] = (lambda v, x: dict(v), [{1: 2}.items(), {1: 3}.items()])
CASES["views4"] = (lambda v, x: sorted(v), [{1: 2}.items(), {1: 3}.items()])
CASES["views5"] = (lambda v, x: [*v], [{1: 2}.items(), {1: 3}.items()])
CASES["views6"] = (lambda v, x: {**dict(v)}, [{1: 2}.items(), {1: 3}.items()])
CASES["odv"] = (
    lambda v, x: [*v],
    [
        collections.OrderedDict(a=1).items(),
        collections.OrderedDict(a=2).items(),
        collections.OrderedDict(a=2).values(),
    ],
)
CASES["proxy2"] = (
    lambda v, x: [x * b for a, b in v.items()],
    [types.MappingProxyType({1: 2}), types.MappingProxyType({1: 3})],
)
CASES["kwpartial"] = (
    lambda v, x: v(x),
    [functools.partial(torch.clamp, min=1), functools.partial(torch.clamp, max=1)],
)
CASES["meth"] = (lambda v, x: v("a"), [{"a": 1}.__getitem__, {"a": 2}.__getitem__])
CASES["memb"] = (lambda v, x: v(3), [[1, 3].__contains__, [2].__contains__])
CASES["cell"] = (lambda v, x: x * v.cell_contents, [types.CellType(1), types.CellType(2)])
CASES["exc2"] = (lambda e, x: x * e.code, [SystemExit(1), SystemExit(2)])
CASES["oserr"] = (lambda e, x: x * e.errno, [OSError(1, "a"), OSError(2, "b")])
CASES["stopit"] = (lambda e, x: x * e.value, [StopIteration(1), StopIteration(2)])
CASES["unierr"] = (
    lambda e, x: x * e.start,
    [UnicodeDecodeError("a", b"b", 1, 2, "c"), UnicodeDecodeError("a", b"b", 2, 2, "c")],
)
CASES["wref"] = (lambda e, x: x * e().k, [weakref.ref(HOLD[0]), weakref.ref(HOLD[1])])
CASES["modul"] = (lambda m, x: x * m.k, [module_with(1), module_with(2)])
CASES["superc"] = (lambda o, x: o.go(x), [SUB(1), SUB(2)])


X = torch.arange(4.0)


def same(left, right):
    """Equality, tensors and errors by what they hold."""
    if isinstance(left, torch.Tensor):
        return (
            isinstance(right, torch.Tensor)
            and left.dtype == right.dtype
            and torch.equal(left, right)
        )
    if isinstance(left, BaseException):
        return type(left) is type(right) and str(left) == str(right)
    if isinstance(left, (tuple, list)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return left == right


def outcome(function, value):
    try:
        return function(value, X)
    except Exception as error:
        return error


@pytest.mark.parametrize("name", CASES)
def test_another_value_of_the_class(name):
    function, values = CASES[name]
    compiled = braze.compile(function, backend="aot_eager")
    for value in [*values, *values]:
        assert same(outcome(compiled, value), outcome(function, value)), value


# --- values that are not arguments ---------------------------------------------------------------


class Holder:
    value = None


class Slotted:
    __slots__ = ("value",)


class Layer(torch.nn.Module):
    def forward(self, x):
        return self.function(self.value, x)


def of_a_global(function):
    space = {"__name__": "made", "function": function}
    exec("def run(x): return function(VALUE, x)", space)
    return space["run"], lambda value: space.__setitem__("VALUE", value)


def of_another_module(function):
    module = types.ModuleType("made")

    def put(value):
        module.value = value

    return lambda x: function(module.value, x), put


def of_a_closure(function):
    value = None

    def put(new):
        nonlocal value
        value = new

    return lambda x: function(value, x), put


def of_an_attribute(function):
    holder = Holder()

    def put(value):
        holder.value = value

    return lambda x: function(holder.value, x), put


def of_a_slot(function):
    holder = Slotted()

    def put(value):
        holder.value = value

    return lambda x: function(holder.value, x), put


def of_a_class(function):
    made = type("Made", (Holder,), {})

    def put(value):
        made.value = value

    return lambda x: function(made.__dict__["value"], x), put


def of_a_layer(function):
    layer = Layer()
    layer.function = function

    def put(value):
        vars(layer)["value"] = value

    return lambda x: layer(x), put


def of_a_dict(function):
    holder = Holder()
    holder.value = {}
    return lambda x: function(holder.value["k"], x), lambda v: holder.value.__setitem__("k", v)


def of_a_list(function):
    many = [0, [None]]
    return lambda x: function(many[1][0], x), lambda value: many[1].__setitem__(0, value)


def of_a_default(function):
    def run(x, value=None):
        return function(value, x)

    def put(value):
        run.__defaults__ = (value,)

    return run, put


def of_a_keyword_default(function):
    def inner(x, *, value=None):
        return function(value, x)

    return lambda x: inner(x), lambda value: inner.__kwdefaults__.__setitem__("value", value)


PLACES = [
    of_a_global,
    of_another_module,
    of_a_closure,
    of_an_attribute,
    of_a_slot,
    of_a_class,
    of_a_layer,
    of_a_dict,
    of_a_list,
    of_a_default,
    of_a_keyword_default,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("name", CASES)
def test_another_value_at_a_place(name, place):
    function, values = CASES[name]
    run, put = place(function)
    compiled = braze.compile(run, backend="aot_eager")
    for value in [*values, values[0]]:
        put(value)
        found, wanted = outcome_of(compiled), outcome_of(run)
        assert same(found, wanted), value


def outcome_of(function):
    try:
        return function(X)
    except Exception as error:
        return error
