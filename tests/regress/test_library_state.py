"""Parts of the standard library that keep state: warning filters, registries, weak references."""

from __future__ import annotations

import abc
import functools
import sys
import warnings
import weakref

import pytest
import torch

import braze
from braze.errors import GraphBreakError

X = torch.arange(4.0)


@functools.singledispatch
def scale(value, x):
    return x


@scale.register
def _(value: int, x):
    return x * value


@scale.register(list)
def _(value, x):
    return x - len(value)


class Scaler:
    @functools.singledispatchmethod
    def go(self, value, x):
        return x

    @go.register
    def _(self, value: int, x):
        return x * 5


class Kept:
    def __init__(self, k):
        self.k = k


KEPT = Kept(4)
TABLE = {int: 2, (int, str): 3, str: 4}


def dispatched(x):
    return scale(3, x) + scale([1], x) + scale("a", x) + scale(True, x) + scale(x, x)


def dispatched_method(x):
    scaler = Scaler()
    return scaler.go(1, x) + scaler.go("a", x)


def dispatched_by_a_function_made_here(x):
    @functools.singledispatch
    def f(value):
        return x

    f.register(int, lambda value: x * value)
    return f(3) + f("a")


def tables_of_classes(x):
    return x * TABLE[int] + TABLE[int, str] * (float in TABLE), TABLE.get((int, int))


def weak_references(x):
    made = Kept(3)
    inner, outer = weakref.ref(made), weakref.ref(KEPT)
    many = weakref.WeakKeyDictionary({KEPT: x})
    return x * inner().k * outer().k + many[KEPT], outer, outer is weakref.ref(KEPT)


def a_dead_reference(x):
    made = Kept(3)
    reference = weakref.ref(made)
    del made
    return x * 2, reference() is None


def ignored_warnings(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = x * 2
    return y + 1


PROGRAMS = [
    dispatched,
    dispatched_method,
    dispatched_by_a_function_made_here,
    tables_of_classes,
    weak_references,
    a_dead_reference,
    ignored_warnings,
]


def same(left, right):
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_one_graph(program):
    # From Python 3.13 on such a method keeps a dict of weak references to instances.
    whole = program is not dispatched_method or sys.version_info < (3, 13)
    compiled = braze.compile(program, backend="aot_eager", fullgraph=whole)
    for _ in range(3):
        filters = list(warnings.filters)
        assert same(compiled(X), program(X))
        assert warnings.filters == filters


def test_a_new_registration_is_seen():
    @functools.singledispatch
    def f(value, x):
        return x

    f.register(int, lambda value, x: x * value)
    compiled = braze.compile(lambda x: f(3, x), backend="aot_eager")
    assert torch.equal(compiled(X), X * 3)
    f.register(int, lambda value, x: x - value)
    assert torch.equal(compiled(X), X - 3)
    f.register(bool, lambda value, x: x)
    assert torch.equal(compiled(X), X - 3)


def test_an_abstract_class_that_gets_another_member():
    class Sized(abc.ABC):  # noqa: B024
        pass

    class Other:
        pass

    @functools.singledispatch
    def f(value, x):
        return x

    f.register(Sized, lambda value, x: x * 2)
    program = lambda x: (f(Other(), x), isinstance(Other(), Sized))  # noqa: E731
    compiled = braze.compile(program, backend="aot_eager")
    assert same(compiled(X), (X, False))
    Sized.register(Other)
    assert same(compiled(X), (X * 2, True))


def test_another_table_entry():
    compiled = braze.compile(tables_of_classes, backend="aot_eager")
    assert same(compiled(X), tables_of_classes(X))
    for key in ((int, str), int, (int, int), float):
        before = TABLE.get(key)
        TABLE[key] = 7
        try:
            assert same(compiled(X), tables_of_classes(X)), key
        finally:
            if before is None:
                del TABLE[key]
            else:
                TABLE[key] = before
    assert same(compiled(X), tables_of_classes(X))


def recorded(x):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.warn("here")  # noqa: B028
        y = x * 2
    return y + 1, [str(each.message) for each in found]


def hidden_then_shown(x):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "hidden")
        warnings.warn("hidden")  # noqa: B028
    warnings.warn("shown")  # noqa: B028
    return x * 2


def shown_then_hidden(x):
    warnings.warn("shown")  # noqa: B028
    warnings.simplefilter("ignore")
    warnings.warn("hidden")  # noqa: B028
    return x * 2


def hidden(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden")  # noqa: B028
        return x * 2


def hidden_by_category(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.warn("shown")  # noqa: B028
        warnings.warn("hidden", DeprecationWarning)  # noqa: B028
        return x * 2


def made_an_error(x):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            warnings.warn("raised")  # noqa: B028
        except UserWarning as warning:
            return x * 2, str(warning)
    return x


@pytest.mark.parametrize(
    "program",
    [recorded, hidden_then_shown, shown_then_hidden, hidden, hidden_by_category, made_an_error],
)
def test_warnings_are_given_as_in_eager(program):
    def run(function):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            results = []
            for _ in range(3):
                with warnings.catch_warnings():
                    results.append(function(X))
        return results, [str(warning.message) for warning in found]

    found, wanted = run(braze.compile(program, backend="aot_eager")), run(program)
    assert found[1] == wanted[1]
    for left, right in zip(found[0], wanted[0], strict=True):
        assert left == right if isinstance(left, list) else same(left, right)


def test_a_warning_under_other_filters_breaks():
    with pytest.raises(GraphBreakError, match="the frame changed the filters"):
        braze.compile(recorded, backend="aot_eager", fullgraph=True)(X)
