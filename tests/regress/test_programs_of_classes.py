"""Classes, and what makes them: results and state after two calls, and one graph."""

from __future__ import annotations

import collections

import pytest

from tests.regress.programs import registry, tensor
from tests.regress.states import check, compiles

PROGRAMS, program = registry()


@program
def metaclass_that_makes_instances():
    class Single(type):
        made = {}

        def __call__(cls, *args):
            if cls not in cls.made:
                cls.made[cls] = super().__call__(*args)
            return cls.made[cls]

    class Marked(type):
        def __call__(cls, *args):
            made = type.__call__(cls, *args)
            made.marked = True
            return made

    class Config(metaclass=Single):
        def __init__(self, scale=3):
            self.scale = scale

    class Other(metaclass=Marked):
        pass

    def f(x):
        return x * Config().scale, Config() is Config(), Other().marked

    return f, (tensor(2),)


@program
def counter_of_a_class_of_its_own():
    class Bag(collections.Counter):
        pass

    def f(x, words):
        bag = Bag(words)
        return x * bag["a"], bag.copy(), type(bag.copy()) is Bag

    return f, (tensor(2), ["a", "b", "a"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name], backend="aot_eager")


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_break(name):
    """The second call finds another state, the third does not."""
    found = compiles(PROGRAMS[name], calls=3)
    assert found[0] == (1, []) and found[-1] == (0, [])
