"""Operators, sorting and callbacks over objects whose classes define them in Python."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
import operator

import torch

from tests.unit.capture.replay import agree

X = torch.arange(6.0).reshape(2, 3)


@functools.total_ordering
class Version:
    def __init__(self, *parts):
        self.parts = parts

    def __eq__(self, other):
        return isinstance(other, Version) and self.parts == other.parts

    def __lt__(self, other):
        return self.parts < other.parts

    def __hash__(self):
        return hash(self.parts)


class Infinity:
    """Greater than anything, as packaging's versions use it inside of tuples."""

    def __lt__(self, other):
        return False

    def __gt__(self, other):
        return not isinstance(other, Infinity)

    def __eq__(self, other):
        return isinstance(other, Infinity)

    __hash__ = None


class Money:
    def __init__(self, amount):
        self.amount = amount

    def __add__(self, other):
        return Money(self.amount + other.amount)

    def __radd__(self, other):
        return self if other == 0 else NotImplemented

    def __iadd__(self, other):
        self.amount += other.amount
        return self

    def __neg__(self):
        return Money(-self.amount)

    def __mul__(self, factor):
        return Money(self.amount * factor)

    __rmul__ = __mul__

    def __matmul__(self, other):
        return self.amount * other.amount

    def __getitem__(self, index):
        return self.amount, index

    def __contains__(self, item):
        return item == self.amount

    def __str__(self):
        return f"{self.amount} coins"


@dataclasses.dataclass(order=True)
class Job:
    priority: int
    name: str = dataclasses.field(compare=False)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


OUTSIDE = [Version(1, 2), Version(1, 1), Version(3)]


def test_operator_functions_call_the_classes_own_methods():
    def f(x):
        old, new = Version(1, 9), Version(1, 10)
        a, b = Money(x), Money(x + 1)
        total = operator.add(a, b)
        operator.iadd(a, b)
        return (
            [op(old, new) for op in (operator.lt, operator.le, operator.eq, operator.ne)],
            [op(old, new) for op in (operator.gt, operator.ge)],
            total.amount,
            a.amount,
            operator.neg(b).amount,
            operator.matmul(a, b),
            operator.getitem(b, 3),
            operator.contains(Money(5), 5),
            operator.mul(2, b).amount,
            operator.truth([]),
            operator.not_(0),
            operator.is_(a, a),
        )

    agree(lambda: (f, (X.clone(),)))


def test_ordering_of_tuples_looks_into_them():
    def f(x):
        first, second = (1, Infinity()), (1, 5)
        flags = first < second, first > second, [1, Version(2)] <= [1, Version(2), 0], (1,) < (1, 2)
        return x + 1 if flags[1] else x, flags

    agree(lambda: (f, (X.clone(),)))


def test_sorting_and_extremes_of_objects():
    def f(x):
        versions = [Version(2), Version(1, 5), Version(1, 4)]
        jobs = [Job(3, "c"), Job(1, "a"), Job(2, "b")]
        jobs.sort()
        names = [job.name for job in sorted(jobs, reverse=True)]
        parts = [v.parts for v in sorted(versions)]
        best = min(versions).parts, max(OUTSIDE).parts, max(jobs, key=lambda job: job.name).name
        by_length = sorted(["ccc", "a", "bb"], key=len)
        outside = [v.parts for v in sorted(OUTSIDE)]
        stable = sorted([(1, "b"), (0, "z"), (1, "a")], key=operator.itemgetter(0))
        return x, names, parts, best, by_length, outside, stable, sum([Money(x), Money(x)]).amount

    agree(lambda: (f, (X.clone(),)))


def test_sorting_a_list_from_outside_changes_it():
    def f(x, items):
        items.sort(key=lambda item: -item)
        return x

    agree(lambda: (f, (X.clone(), [2, 3, 1])))


def test_builtins_call_back_into_classes():
    def f(x):
        coins = [Money(1), Money(2)]
        return (
            x,
            list(map(str, coins)),
            [m.amount for m in map(Money, [x, 2])],
            [m.amount for m in itertools.accumulate(coins, operator.add)],
            functools.reduce(operator.add, coins).amount,
            [(k, len(list(g))) for k, g in itertools.groupby([1, 1, 2], key=lambda v: v % 2)],
            [c.name for c in Color],
            [(c.value, i) for i, c in enumerate(Color)],
            list(itertools.starmap(operator.mul, [(2, 3), (x, 2)])),
            list(map(operator.methodcaller("upper"), "ab")),
            list(map(functools.partial(operator.add, 1), [1, 2])),
        )

    agree(lambda: (f, (X.clone(),)))
