"""Callables of C from outside: what they are bound to and what they do is guarded. Another one of
the same class got the result of the first."""

from __future__ import annotations

import functools
import operator
import random

import pytest
import torch

import braze

X = torch.arange(3.0)


def same(left, right):
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


CALLABLES = {
    "itemgetters": ([operator.itemgetter(0), operator.itemgetter(1)], (X,)),
    "attrgetters": ([operator.attrgetter("shape"), operator.attrgetter("dtype")], (X,)),
    "methodcallers": (
        [
            operator.methodcaller("sum"),
            operator.methodcaller("clamp", min=1),
            operator.methodcaller("clamp", 1, max=2),
        ],
        (X,),
    ),
    "partials": (
        [
            functools.partial(torch.add, X),
            functools.partial(torch.add, X, alpha=2),
            functools.partial(torch.mul, 2),
        ],
        (X,),
    ),
    "methods of tensors": ([X.add, (X * 2).add, X.mul], (X,)),
    "methods of lists": ([[1, 2].count, [1, 1].count], (1,)),
    "methods of dicts": ([{1: 2}.get, {1: 3}.get], (1,)),
    "methods of strings": (["aab".count, "abb".count, "abb".find], ("a",)),
    "methods of numbers": ([(3).__add__, (4).__add__, (4).__mul__], (1,)),
    "methods of sets": ([{1, 2}.union, {3}.union], ({5},)),
    "builtins": ([max, min], (3, 4)),
    "forward": ([torch.nn.Linear(3, 2).forward, torch.nn.Linear(3, 2).forward], (X,)),
}


@pytest.mark.parametrize("kind", CALLABLES)
def test_another_one_of_the_same_class(kind):
    functions, args = CALLABLES[kind]
    compiled = braze.compile(lambda g, *args: g(*args), backend="aot_eager")
    for function in [*functions, *functions]:
        assert same(compiled(function, *args), function(*args)), function


def test_random_numbers_of_python():
    def seeded(x, many):
        random.seed(7)
        random.shuffle(many)
        order = random.sample(range(3), 3)
        scale = random.uniform(0.5, 2) * random.randint(1, 3)
        return x[order] * scale if random.random() < 0.9 else x, random.choice("abc"), many

    compiled = braze.compile(seeded, backend="aot_eager")
    for _ in range(3):
        actual, expected = compiled(X, [1, 2, 3]), seeded(X, [1, 2, 3])
        assert torch.equal(actual[0], expected[0]) and actual[1:] == expected[1:]


def test_generators_of_random_numbers():
    compiled = braze.compile(lambda r, x: x * r.random(), backend="aot_eager")
    mine, other = random.Random(3), random.Random(3)
    for _ in range(4):
        assert torch.equal(compiled(mine, X), X * other.random())

    def own(x):
        generator = random.Random(5)
        return x * generator.uniform(0, 1) + generator.randint(0, 9)

    explained = braze.explain(own)(X)
    assert not explained.break_reasons and torch.equal(explained.result, own(X))


def test_super_taken_over_a_break():
    class Base:
        def go(self, x):
            return x * self.scale

    class Derived(Base):
        scale = 2

        def go(self, x):
            above = super()
            print("", end="")
            return above.go(x) + 1

    compiled = braze.compile(lambda each, x: each.go(x), backend="aot_eager")
    one, other = Derived(), Derived()
    other.scale = 3
    for each in (one, other, one):
        assert torch.equal(compiled(each, X), each.go(X))


def test_a_symbolic_number_has_the_methods_of_int():
    compiled = braze.compile(lambda x, n: x * n.bit_length(), backend="aot_eager")
    for number in (3, 5, 9, 17):
        assert torch.equal(compiled(X, number), X * number.bit_length())
