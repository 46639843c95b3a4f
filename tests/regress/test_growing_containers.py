"""Containers from outside that only grow: whatever is in them, nothing compiles again."""

from __future__ import annotations

import collections

import pytest

from tests.regress.programs import registry, tensor
from tests.regress.states import check, compiles

PROGRAMS, program = registry()
pytestmark = pytest.mark.filterwarnings("ignore")


@program
def append_only():
    def f(h, x):
        h.append(x * 2)
        h.append(3)
        return x + 1

    return f, ([], tensor(3))


@program
def append_and_len():
    def f(h, x):
        h.append(x * 2)
        return x + len(h)

    return f, ([], tensor(3))


@program
def append_then_read():
    def f(h, x):
        h.append(x * 2)
        return h[-1] + h[0]

    return f, ([tensor(3)], tensor(3))


@program
def iadd():
    class A:
        def __init__(self):
            self.rows = [1]

    def f(a, x):
        a.rows += [x, 2]
        a.rows.extend((3, 4))
        return x * 2

    return f, (A(), tensor(3))


@program
def sets():
    def f(s, x):
        s.add("a")
        s.add(x.shape[0])
        return x * 2

    return f, (set(), tensor(3))


@program
def dq():
    def f(s, x):
        s.append(x * 2)
        return x * 2

    return f, (collections.deque(maxlen=2), tensor(3))


@program
def dqread():
    def f(s, x):
        s.append(x * 2)
        return s[0]

    return f, (collections.deque([tensor(3)] * 2, maxlen=2), tensor(3))


@program
def aliased():
    def f(a, b, x):
        a.append(x * 2)
        return x + len(b)

    many = []
    return f, (many, many, tensor(3))


@program
def unaliased():
    def f(a, b, x):
        a.append(x * 2)
        return x + len(b)

    return f, ([], [], tensor(3))


@program
def iterate_after():
    def f(a, x):
        a.append(x * 2)
        for y in a:
            x = x + y
        return x

    return f, ([tensor(3)], tensor(3))


@program
def extend_self():
    def f(a, x):
        a.extend(a)
        return x * 2

    return f, ([1, 2], tensor(3))


@program
def in_after():
    def f(a, x):
        a.append(1)
        if 1 in a:
            return x * 2
        return x

    return f, ([2], tensor(3))


@program
def bound_append():
    def f(a, x):
        p = a.append
        for i in range(3):
            p(x * i)
        return x

    return f, ([2], tensor(3))


@program
def nested():
    def f(a, x):
        a.append([x * 2])
        a.append(a)
        return x

    return f, ([2], tensor(3))


@program
def pop_after():
    def f(a, x):
        a.append(x * 2)
        return a.pop(0), a.pop()

    return f, ([1, 2, 3], tensor(3))


USUAL = [(1, []), (0, [])]
COMPILES = {
    "append_and_len": [(1, []), (1, [])],
    "append_then_read": [(1, []), (1, [])],
    "dqread": [(1, []), (1, [])],
    "aliased": [(1, []), (1, [])],
    "iterate_after": [(1, []), (1, [])],
    "extend_self": [(1, []), (1, [])],
    "in_after": [(1, []), (1, [])],
    "pop_after": [(1, []), (1, [])],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name], backend="aot_eager")


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_and_breaks(name):
    assert compiles(PROGRAMS[name]) == COMPILES.get(name, USUAL)
