"""Python semantics: small programs, eager against captured, in outputs and in state."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import types
from typing import NamedTuple

import pytest
import torch

from braze.ir.captured.frame import Refused
from tests.unit.capture.replay import agree, outcome, same

X = torch.arange(6.0).reshape(2, 3)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Point(NamedTuple):
    x: torch.Tensor
    y: int


@dataclasses.dataclass
class Box:
    value: torch.Tensor
    label: str = "box"
    items: list = dataclasses.field(default_factory=list)

    @property
    def doubled(self):
        return self.value * 2

    @classmethod
    def wrap(cls, value):
        return cls(value, "wrapped")

    @staticmethod
    def scale(value):
        return value * 3

    def __add__(self, other):
        return Box(self.value + other.value, self.label)

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return self.value[index]

    def __contains__(self, item):
        return item == self.label

    def __call__(self, y):
        return self.value - y


class Base:
    def __init__(self, scale):
        self.scale = scale

    def apply(self, x):
        return x * self.scale


class Derived(Base):
    __slots__ = ("extra",)

    def __init__(self, scale, extra):
        super().__init__(scale)
        self.extra = extra

    def apply(self, x):
        return super().apply(x) + self.extra


class Dynamic:
    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(name)
        return len(name)


class Recorder:
    def __init__(self):
        self.events = []

    def __enter__(self):
        self.events.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.events.append(kind.__name__ if kind else "exit")
        return kind is KeyError


@contextlib.contextmanager
def doubling(values):
    values.append(2)
    try:
        yield values
    finally:
        values.append(4)


def loops(x):
    total = x
    for i in range(3):
        if i == 1:
            continue
        total = total + i
    else:
        total = total * 2
    while total.dim() < 4:
        total = total.unsqueeze(0)
        if total.dim() == 3:
            break
    return total


def comprehensions(x):
    a = [x * i for i in range(3) if i != 1]
    b = {i: x + i for i in range(2)}
    c = {i % 2 for i in range(5)}
    d = tuple(y + 1 for y in a)
    nested = [[i * j for i in range(j)] for j in range(3)]
    k = 7
    makers = [lambda: x + k for k in range(2)]  # noqa: B023
    hidden = [k * x for k in range(2)]

    def uses():
        return k

    try:
        i  # noqa: B018
    except NameError:
        unbound = True
    if x.dim() > 5:
        i = 1  # noqa: F841
    return a, b, c, d, nested, k, [make() for make in makers], hidden, uses(), unbound


def generators(x):
    def count(n):
        for i in range(n):
            got = yield x + i
            if got is not None:
                yield got
        return "done"

    def outer():
        result = yield from count(2)
        yield result

    g = count(3)
    first = next(g)
    sent = g.send(5)
    return first, sent, list(outer()), sum(y.sum() for y in count(2))


def closures(x):
    count = 0

    def add(n=2, *, k=1):
        nonlocal count
        count += n * k
        return x + count

    def twice(f):
        return lambda *a, **kw: f(f(*a, **kw).numel() - 5)

    add()
    return add(3), add(k=4), count, twice(add)(1)


def exceptions(x):
    log = []
    try:
        try:
            raise ValueError("a")
        except KeyError:
            log.append("wrong")
        finally:
            log.append("finally")
    except (ValueError, TypeError) as error:
        log.append(str(error))
    else:
        log.append("else")
    try:
        {}["missing"]
    except KeyError as error:
        log.append(error.args)
    try:
        [].pop()
    except IndexError:
        log.append("index")
    try:
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError as inner:
            raise RuntimeError("outer") from inner
    except RuntimeError as outer:
        log.append(type(outer.__cause__).__name__)

    def returns_through_finally():
        try:
            return "body"
        finally:
            log.append("left")

    log.append(returns_through_finally())
    try:
        torch.ones(2) + torch.ones(3)
    except RuntimeError:
        log.append("shape")
    return log, x + 1


def exception_groups(x):
    log = []

    def run(group):
        try:
            try:
                raise group
            except* ValueError as error:
                log.append([str(e) for e in error.exceptions])
            except* (KeyError, OSError) as error:
                log.append(len(error.exceptions))
                raise RuntimeError("again") from None
        except BaseExceptionGroup as rest:
            return [type(e).__name__ for e in rest.exceptions]
        return "all taken"

    return (
        x + 1,
        run(ExceptionGroup("g", [ValueError("a"), ValueError("b")])),
        run(ExceptionGroup("g", [ValueError("a"), TypeError("b")])),
        run(ExceptionGroup("g", [KeyError("a"), TypeError("b")])),
        run(ValueError("plain")),
        log,
    )


def withs(x):
    recorder = Recorder()
    with recorder as r:
        x = x + 1
    with recorder:
        raise KeyError("swallowed")
    values = []
    with doubling(values) as v, contextlib.suppress(ValueError):
        x = x * v[0]
        raise ValueError
    with contextlib.nullcontext(3) as three, torch.no_grad():
        x = x + three
    with contextlib.ExitStack() as stack:
        stack.enter_context(doubling(values))
    return x, r.events, values


def matching(x):
    results = []
    for subject in (1, "two", [1, 2, 3], {"k": 5, "z": 1}, Point(x, 3), (), None, 2.5):
        match subject:
            case 1:
                results.append("one")
            case str(text):
                results.append(text)
            case [first, *rest] if len(rest) == 2:
                results.append((first, rest))
            case {"k": value, **others}:
                results.append((value, others))
            case Point(x=t, y=3):
                results.append(t + 1)
            case () | None:
                results.append("empty")
            case _:
                results.append("other")
    return results


def star_arguments(x):
    def f(a, b=2, /, c=3, *args, d, e=5, **kwargs):
        return (a, b, c, args, d, e, kwargs)

    first, *middle, last = (1, 2, 3, 4)
    merged = {"d": 1, "z": 9}
    return f(x, d=4), f(1, 2, 3, 4, 5, **merged), f(*[1, 2], *(3,), **merged), first, middle, last


def classes(x):
    box = Box(x)
    other = Box.wrap(x + 1)
    total = box + other
    derived = Derived(2, 3)
    return (
        total.value,
        total.label,
        box.doubled,
        Box.scale(x),
        len(box),
        box[0],
        "box" in box,
        box(1),
        derived.apply(x),
        isinstance(derived, Base),
        type(derived).__name__,
        getattr(Dynamic(), "abc"),  # noqa: B009
        hasattr(Dynamic(), "nothing"),
        getattr(Dynamic(), "none", "default"),
    )


def returns_instances(x):
    box = Box(x, items=[x])
    box.items.append(box.value)
    derived = Derived(x, 1)
    return box, derived, Point(x, 1), Color.RED, types.SimpleNamespace(a=x)


def functional(x):
    double = functools.partial(torch.mul, other=2)
    add = functools.partial(operator.add, 1)
    chained = itertools.chain([1, 2], (3,))
    reduced = functools.reduce(lambda a, b: a * b, [x, x, 2])
    return (
        double(x),
        add(4),
        list(chained),
        reduced,
        list(map(lambda a, b: a + b, [1, 2], [x, x])),
        list(filter(None, [0, 1, 2])),
        sorted([3, 1, 2], key=lambda v: -v),
        max([1, 5, 3], key=lambda v: abs(v - 3)),
        list(itertools.islice(itertools.count(5), 3)),
        list(itertools.product([1, 2], [3])),
        dict(zip("ab", [x, 1])),
        list(enumerate("ab", 1)),
        list(reversed([1, 2])),
        any(v > 1 for v in [1, 2]),
        all([]),
        math.prod([2, 3]),
        sum([x, x]),
    )


def strings(x):
    name, value = "n", 3.14159
    return (
        f"{name!r}:{value:.2f} {value=} {x.shape} {x.dtype}",
        f"{1} {2}",
        "%s-%d" % (name, 3),  # noqa: UP031
        "a,b".split(","),
        "-".join(["x", "y"]),
        str([1, "a"]),
        repr(name),
        name.upper().startswith("N"),
    )


def containers(x):
    d = {"a": 1}
    d["b"] = x
    d.setdefault("c", []).append(5)
    d.update(e=2)
    popped = d.pop("a")
    items = [(k, v) for k, v in d.items()]  # noqa: C416
    s = {1, 2} | {3}
    s.add(4)
    s.discard(1)
    lst = [3, 1, 2]
    lst.sort()
    lst.insert(0, 9)
    lst += [7]
    lst[1:2] = [8, 8]
    del lst[0]
    dd = collections.defaultdict(list)
    dd["k"].append(x)
    od = collections.OrderedDict(a=1)
    od.move_to_end("a")
    dq = collections.deque([1, 2], maxlen=2)
    dq.append(3)
    counter = collections.Counter("aab")
    return d, popped, items, s, lst, dd, od, list(dq), counter, lst == [8, 8, 2, 3, 7], 3 in lst


def numbers(x):
    a = 7
    a //= 2
    a **= 2
    return a, -a, ~a, +a, not a, a << 1, 1 if a > 3 else 2, 1 < a < 100, a & 1 or "x", divmod(7, 2)


def tensor_code(x):
    y = x.clone()
    y[0] = 5
    y[:, 1] += 1
    y.mul_(2)
    z = y.view(-1)[1:3]
    z.add_(1)
    a, b = torch.split(y, 1)
    values, indices = y.max(dim=1)
    shape = y.shape
    return y, z, a, b, values, indices, shape, shape[0], len(y), y.size(1), [r for r in y]  # noqa: C416


def walrus_and_unpacking(x):
    if (n := len(x)) > 1:
        (a, b), c = (1, 2), 3
        return n, a, b, c
    return None


def globals_and_types(x):
    return type(x) is torch.Tensor, isinstance(x, torch.Tensor), callable(len), id(x) == id(x)


PROGRAMS = [
    loops,
    comprehensions,
    generators,
    closures,
    exceptions,
    exception_groups,
    withs,
    matching,
    star_arguments,
    classes,
    returns_instances,
    functional,
    strings,
    containers,
    numbers,
    tensor_code,
    walrus_and_unpacking,
    globals_and_types,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_program(program):
    agree(lambda: (program, (X.clone(),)))


def test_wrong_arguments_raise_as_python_does():
    def f(x):
        try:
            (lambda a: a)(1, 2)
        except TypeError as error:
            return str(error)

    agree(lambda: (f, (X,)))


def test_uncaught_exception_is_refused_and_nothing_happened():
    seen = []

    def f(x):
        seen.append(1)
        raise ValueError("no")

    result = outcome(f, X)
    assert isinstance(result, Refused)
    assert result.kind == "raises" and result.code == "ValueError"
    assert seen == []
    assert same(X, X)
