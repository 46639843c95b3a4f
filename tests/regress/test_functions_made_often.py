"""Functions that a program makes anew at each call, passed in or taken over a break: any with the
same code is served by the same entry, and what they hold is guarded as it is read."""

from __future__ import annotations

import functools

import pytest
import torch

import braze
from tests.regress.programs import registry, tensor
from tests.regress.states import check, compiles

PROGRAMS, program = registry()
pytestmark = pytest.mark.filterwarnings("ignore")


@program
def local_function():
    def f(x):
        def g(a):
            return a * 2

        y = g(x)
        print("", end="")
        return g(y)

    return f, (tensor(3),)


@program
def local_closure():
    def f(x):
        k = x + 1

        def g(a, n=2):
            return a * k + n

        y = g(x)
        print("", end="")
        return g(y)

    return f, (tensor(3),)


@program
def vmapped():
    def f(x):
        g = torch.vmap(lambda row: row * 2)
        y = g(x)
        print("", end="")
        return g(y)

    return f, (tensor(3, 2),)


@program
def gradient():
    def f(x):
        k = 3.0
        g = torch.func.grad(lambda row: (row**2).sum() * k, argnums=0)
        y = g(x)
        print("", end="")
        return g(y)

    return f, (tensor(3, 2),)


@program
def decorated():
    def logged(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args) + 1

        return wrapper

    def f(x):
        @logged
        def g(a):
            return a * 2

        print("", end="")
        return g(x), g.__name__

    return f, (tensor(3),)


@program
def counters():
    def f(x):
        n = 0

        def step():
            nonlocal n
            n += 1
            return n

        step()
        print("", end="")
        return x * step() + n, n

    return f, (tensor(3),)


@program
def in_a_list():
    def f(x):
        steps = [lambda a: a * 2, lambda a: a + 1]
        print("", end="")
        for step in steps:
            x = step(x)
        return x

    return f, (tensor(3),)


@program
def returned():
    def f(g, x):
        return g, g(x)

    return f, (lambda a: a * 2, tensor(3))


USUAL = [(1, []), (0, [])]
COMPILES = {
    "local_function": [(2, ["input-output"]), (0, [])],
    "local_closure": [(2, ["input-output"]), (0, [])],
    "vmapped": [(2, ["input-output"]), (0, [])],
    "gradient": [(2, ["input-output"]), (0, [])],
    "decorated": [(1, ["input-output"]), (0, [])],
    "counters": [(1, ["input-output"]), (0, [])],
    "in_a_list": [(1, ["input-output"]), (0, [])],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name], backend="aot_eager")


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_and_breaks(name):
    assert compiles(PROGRAMS[name]) == COMPILES.get(name, USUAL)


def calls(function, *arguments):
    """Results of a compiled function for each arguments, and how many frames it compiled."""
    compiled = braze.compile(function, backend="aot_eager")
    results = []
    for given in arguments:
        results.append(compiled(*given))
        assert torch.equal(results[-1], function(*given)), given
    return len(compiled.dispatcher.caches()[0].entries)


X = torch.arange(3.0)


def apply(g, x):
    return g(x)


def adder(k):
    return lambda a: a + k


def test_same_code_one_entry():
    assert calls(apply, *[(adder(X), X) for _ in range(20)]) == 1


def test_held_values_are_guarded():
    assert calls(apply, (adder(1.5), X), (adder(2.5), X), (adder(1.5), X)) == 2


def test_defaults_are_guarded():
    def with_default(k):
        def g(a, n=k, *, m=k):
            return a * n + m

        return g

    assert calls(apply, (with_default(2.5), X), (with_default(X), X), (with_default(2.5), X)) == 2


def test_other_code_is_another_entry():
    assert calls(apply, (lambda a: a + 1, X), (lambda a: a + 2, X)) == 2


def test_identity_is_guarded_where_it_is_asked_for():
    def same(g, h, x):
        return x + 1 if g is h else x - 1

    one, two = adder(1), adder(1)
    calls(same, (one, one, X), (one, two, X), (two, one, X), (two, two, X))
    calls(lambda g, d, x: x * d[g], (one, {one: 2, two: 3}, X), (two, {one: 2, two: 3}, X))
    calls(lambda g, d, x: x * (g in d), (one, [one], X), (two, [one], X))


def test_shared_and_separate_cells():
    def make(box):
        def put(value):
            nonlocal box
            box = value

        def get():
            return box

        return put, get

    def f(put, get, x):
        put(x * 2)
        return get() + 1

    one, two = make(X), make(X)
    calls(f, (one[0], one[1], X))
    compiled = braze.compile(f, backend="aot_eager")
    for put, get in ((make(X), make(X)), (one, one), (two, one), (one, two)):
        twin_put, twin_get = put[0], get[1]
        before = [cell.cell_contents for cell in twin_get.__closure__]
        actual = compiled(twin_put, twin_get, X)
        expected = X * 2 + 1 if put is get else before[0] + 1
        assert torch.equal(actual, expected)


def test_another_transform():
    def square(a):
        return (a * a).sum()

    def f(g, x):
        return g(x)

    first = torch.func.grad(square)
    compiled = braze.compile(f, backend="aot_eager")
    for g in (torch.func.grad(square), torch.vmap(torch.sin), torch.vmap(torch.cos), first):
        assert torch.allclose(compiled(g, X), g(X))
    rows = torch.arange(6.0).reshape(2, 3)
    for dims in (0, 1, 0):
        g = torch.vmap(torch.sum, in_dims=dims)
        assert torch.equal(compiled(g, rows), g(rows))
