"""Iterators that were made before the call, and how far the frame takes them."""

from __future__ import annotations

import collections
import itertools

import pytest
import torch

import braze
from tests.regress.programs import registry, tensor
from tests.regress.states import check, compiles

PROGRAMS, program = registry()
pytestmark = pytest.mark.filterwarnings("ignore")


def rows(count=6):
    return [tensor(3) + i for i in range(count)]


@program
def next_of_list():
    def f(it, x):
        return next(it) + x

    it = iter(rows())
    return f, (it, tensor(3)), it


@program
def several_of_list():
    def f(it, x):
        return next(it) * next(it) + x

    return f, (iter(rows()), tensor(3))


@program
def loop_over_rest():
    def f(it, x):
        for row in it:
            x = x + row
        return x, next(it, "over")

    return f, (iter(rows()), tensor(3))


@program
def end_of_list():
    def f(it, x):
        try:
            return x + next(it)
        except StopIteration:
            return x * 2

    return f, (iter(rows(1)), tensor(3))


@program
def range_iterator():
    def f(it, x):
        return x + next(it) + next(it)

    return f, (iter(range(10)), tensor(3))


@program
def enumerate_from_outside():
    def f(it, x):
        index, row = next(it)
        return x + index + row

    return f, (enumerate(rows(), 5), tensor(3))


@program
def zip_from_outside():
    def f(it, x):
        for a, b in it:
            return x + a * b
        return x

    return f, (zip(rows(), rows(3)), tensor(3))


@program
def enumerate_of_zip():
    def f(it, x):
        total = x
        for i, (a, b) in it:
            total = total + i * (a + b)
        return total

    return f, (enumerate(zip(rows(), range(4))), tensor(3))


@program
def zip_of_one_iterator_twice():
    it = iter(rows())

    def f(pairs, x):
        a, b = next(pairs)
        return x + a * b

    return f, (zip(it, it), tensor(3)), it


@program
def zip_and_its_part():
    it = iter(rows())

    def f(pairs, single, x):
        a, b = next(pairs)
        return x + a * b + next(single)

    return f, (zip(it, rows()), it, tensor(3))


@program
def dict_iterators():
    d = {"a": tensor(3), "b": tensor(3) + 1, "c": tensor(3) + 2}

    def f(keys, values, items, x):
        name, value = next(items)
        return next(keys), next(values) + value + x, name

    return f, (iter(d), iter(d.values()), iter(d.items()), tensor(3)), d


@program
def ordered_dict_iterator():
    d = collections.OrderedDict(a=tensor(3), b=tensor(3) + 1)

    def f(items, x):
        name, value = next(items)
        return name, value + x

    return f, (iter(d.items()), tensor(3)), d


@program
def dict_that_grows():
    d = {"a": tensor(3), "b": tensor(3) + 1}

    def f(it, d, x):
        y = x + d[next(it)]
        d["c"] = y
        try:
            next(it)
        except RuntimeError as error:
            return y, str(error)
        return y

    return f, (iter(d), d, tensor(3))


@program
def list_that_grows():
    many = rows(2)

    def f(it, many, x):
        for row in it:
            if len(many) < 5:
                many.append(x)
            x = x + row
        return x

    return f, (iter(many), many, tensor(3))


@program
def count_from_outside():
    def f(it, x):
        return x + next(it) + next(it)

    return f, (itertools.count(3, 2), tensor(3))


@program
def reversed_from_outside():
    def f(it, x):
        return x + next(it), list(it)

    return f, (reversed(rows(3)), tensor(3))


@program
def tuple_of_rest():
    def f(it, x):
        first, *rest = it
        return first + x, rest

    return f, (iter(rows(3)), tensor(3))


@program
def passed_to_zip():
    def f(it, x):
        return [a + b for a, b in zip(it, [x, x])]

    return f, (iter(rows(5)), tensor(3))


@program
def passed_to_islice():
    def f(it, x):
        return [a + x for a in itertools.islice(it, 2)]

    return f, (iter(rows(5)), tensor(3))


@program
def kept_on_object():
    class Loader:
        def __init__(self):
            self.data = rows(4)
            self.it = iter(self.data)

        def step(self, x):
            try:
                batch = next(self.it)
            except StopIteration:
                self.it = iter(self.data)
                batch = next(self.it)
            return batch + x

    def f(loader, x):
        return loader.step(x), loader.step(x), loader.step(x)

    return f, (Loader(), tensor(3))


@program
def user_iterator():
    class Counter:
        def __init__(self):
            self.n = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.n += 1
            if self.n > 4:
                raise StopIteration
            return self.n

    def f(it, x):
        return x + next(it) * next(it)

    return f, (Counter(), tensor(3))


@program
def generator_from_outside():
    def numbers():
        yield from range(10)

    def f(it, x):
        return x + next(it) + next(it)

    return f, (numbers(), tensor(3))


@program
def break_in_loop():
    def f(many, x):
        for _i, row in enumerate(many):
            x = x + row
            print("", end="")
            x = x * 2
        return x

    return f, (rows(12), tensor(3))


@program
def break_in_loop_over_zip():
    def f(many, x):
        for a, b in zip(many, many):
            x = x + a
            torch._dynamo.graph_break()
            x = x * b
        return x

    return f, (rows(6), tensor(3))


@program
def break_before_loop():
    def f(many, x):
        it = iter(many)
        x = x + next(it)
        print("", end="")
        for row in it:
            x = x * row
        return x

    return f, (rows(5), tensor(3))


@program
def returned():
    def f(it, x):
        y = x + next(it)
        return it, y

    return f, (iter(rows(5)), tensor(3))


@program
def items_changed():
    many = [1, 2.5, "a", None, tensor(3)]

    def f(it, x):
        item = next(it)
        return (x, item) if isinstance(item, (str, type(None))) else x * item

    return f, (iter(many), tensor(3))


USUAL = [(1, []), (0, [])]
# Programs that compile more or less than one graph at the first call and nothing at the second:
# graphs and breaks of both.
COMPILES = {
    "end_of_list": [(1, []), (1, [])],
    "range_iterator": [(1, []), (1, [])],
    "enumerate_from_outside": [(1, []), (1, [])],
    "zip_of_one_iterator_twice": [(1, ["unseen-callable"]), (0, [])],
    "zip_and_its_part": [(1, ["unbuildable-object"]), (0, [])],
    "dict_iterators": [(1, []), (1, [])],
    "ordered_dict_iterator": [(1, []), (1, [])],
    "dict_that_grows": [(1, ["unbuildable-object", "unbuildable-object"]), (0, [])],
    "list_that_grows": [
        (
            4,
            [
                "unbuildable-object",
                "unbuildable-object",
                "unbuildable-object",
                "unbuildable-object",
            ],
        ),
        (0, []),
    ],
    "count_from_outside": [(1, []), (1, [])],
    "passed_to_zip": [(1, []), (1, [])],
    "kept_on_object": [(1, []), (1, [])],
    "user_iterator": [(1, []), (1, [])],
    "generator_from_outside": [
        (2, ["unseen-callable", "unseen-callable"]),
        (2, ["unseen-callable"]),
    ],
    "break_in_loop": [(4, ["input-output", "input-output", "input-output"]), (0, [])],
    "break_in_loop_over_zip": [(3, ["explicit", "explicit"]), (0, [])],
    "break_before_loop": [(2, ["input-output"]), (0, [])],
    "items_changed": [(1, []), (1, [])],
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_state_as_eager(name):
    check(PROGRAMS[name], backend="aot_eager")


@pytest.mark.parametrize("name", PROGRAMS)
def test_graphs_and_breaks(name):
    assert compiles(PROGRAMS[name]) == COMPILES.get(name, USUAL)


def test_breaking_loop_comes_back_to_the_same_entries():
    """However many times round, a loop with a break takes as many compiles as four times round."""
    few = compiles(lambda: (PROGRAMS["break_in_loop"]()[0], (rows(4), tensor(3))), calls=1)
    many = compiles(lambda: (PROGRAMS["break_in_loop"]()[0], (rows(40), tensor(3))), calls=1)
    assert many == few


def test_next_does_not_compile_again():
    def f(it, x):
        return next(it) + x

    it = iter(rows(20))
    assert sum(n for n, _ in compiles(lambda: (f, (it, tensor(3))), calls=20)) == 1
    assert next(it, None) is None


class _Number(int):
    pass


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("start", [(3,), (3, -2), (0, 0.1), (0.5, 1), (_Number(3), 2), (1 << 70,)])
def test_numbers_of_a_count(start):
    """They come as eager adds them, and nothing warns."""

    def f(it, x):
        return x + 1, [next(it) for _ in range(8)]

    here, there = itertools.count(*start), itertools.count(*start)
    compiled = braze.compile(f, backend="eager", options={"suppress_errors": False})
    for _ in range(3):
        found, expected = compiled(here, torch.ones(2))[1], f(there, torch.ones(2))[1]
        assert found == expected and list(map(type, found)) == list(map(type, expected))
    assert repr(here) == repr(there)


class _ListOfItsOwn(list):
    def __len__(self):
        return 1

    def __getitem__(self, place):
        return -1


class _TupleOfItsOwn(tuple):
    def __len__(self):
        return 1

    def __getitem__(self, place):
        return -1


def _backwards(items):
    return list.__reversed__(items)


@pytest.mark.parametrize(
    ("cls", "look"), [(_ListOfItsOwn, iter), (_TupleOfItsOwn, iter), (_ListOfItsOwn, _backwards)]
)
def test_an_iterator_asks_no_method_of_a_subclass(cls, look):
    """Behind a break the rest of such a loop was left out: the iterator goes by the list itself."""

    def f(it, x):
        return x + 1, [number * 2 for number in it]

    compiled = braze.compile(f, backend="eager", options={"suppress_errors": False})
    for items in ([1, 2, 3], [4, 5, 6]):
        found = compiled(look(cls(items)), torch.ones(2))[1]
        assert found == f(look(cls(items)), torch.ones(2))[1] and len(found) == 3
