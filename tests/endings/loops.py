"""Programs that wait, or compute for long, without an operator: they end as in eager."""

from __future__ import annotations

import functools
import itertools
import threading
import time
import types
from typing import Any

import torch

from tests.endings.run import left_to_eager, program


class Heavy:
    """An object whose making, and whose property, are long computations."""

    def __init__(self, turns: int) -> None:
        self.total = 0
        for i in range(turns):
            self.total += i % 2

    @property
    def sum_of_remainders(self) -> int:
        return sum(i % 5 for i in range(60_000))

    def __iter__(self) -> Any:
        return iter(range(self.total % 7))


def fibonacci(n: int) -> int:
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def remainders(turns: int) -> Any:
    for i in range(turns):
        yield i % 3


@program
def spins_on_an_attribute(x: Any) -> Any:
    state = types.SimpleNamespace(done=False)
    threading.Timer(0.2, setattr, (state, "done", True)).start()
    while not state.done:
        pass
    return x + 1


def spin(x: Any, state: Any) -> Any:
    while not state.done:
        pass
    return x + 1


@program
def spins_on_an_attribute_from_outside() -> Any:
    state = types.SimpleNamespace(done=False)
    threading.Timer(0.2, setattr, (state, "done", True)).start()
    return spin, torch.ones(2), state


@program
def spins_on_an_item(x: Any) -> Any:
    box = {"done": []}
    threading.Timer(0.2, box["done"].append, (1,)).start()
    while not box["done"]:
        pass
    return x + len(box["done"])


@program
def spins_until_a_time(x: Any) -> Any:
    end = time.monotonic() + 0.1
    while time.monotonic() < end:
        pass
    return x + 1


@program
def polls_and_sleeps(x: Any) -> Any:
    end = time.monotonic() + 0.2
    turns = 0
    while time.monotonic() < end:
        time.sleep(0.0001)
        turns += 1
    return x + min(turns, 1)


@program
def counts_without_end(x: Any) -> Any:
    for i in itertools.count():
        if i > 200_000:
            break
    return x + i


@program
def calls_until_a_sentinel(x: Any) -> Any:
    numbers = itertools.count()
    total = 0
    for n in iter(lambda: next(numbers), 80_000):
        total += n
    return x + total


@program
def sums_a_generator(x: Any) -> Any:
    return x + sum(remainders(200_000))


@program
def loops_over_a_generator(x: Any) -> Any:
    total = 0
    for n in remainders(200_000):
        total += n
    return x + total


def _remainder(n: int) -> int:
    return n % 3


@program
def maps_a_function(x: Any) -> Any:
    return x + sum(map(_remainder, range(100_000)))


@program
def reduces(x: Any) -> Any:
    return x + functools.reduce(lambda a, b: (a + b) % 7, range(100_000))


@program
def sorts_by_a_key(x: Any) -> Any:
    return x + sorted(range(80_000), key=lambda n: -n)[0]


@program
def makes_a_long_list(x: Any) -> Any:
    return x + sum([n % 3 for n in range(200_000)])


@program
def makes_a_long_dict(x: Any) -> Any:
    table = {n: n % 3 for n in range(60_000)}
    return x + table[59_999] + len(table)


@program
def calls_itself(x: Any) -> Any:
    return (x * 2 + fibonacci(21)) * fibonacci(19)


@program
def computes_in_init(x: Any) -> Any:
    return x + Heavy(150_000).total


@program
def computes_in_a_property(x: Any) -> Any:
    return x * Heavy(3).sum_of_remainders


@program
def computes_between_operators(x: Any) -> Any:
    for _ in range(3):
        x = x * 2
        total = 0
        for i in range(100_000):
            total += i % 4
        x = x + total
    return x


@program
def computes_in_a_handler(x: Any) -> Any:
    try:
        x = x + 1
        raise KeyError("x")
    except KeyError as error:
        total = 0
        for i in range(200_000):
            total += i % 4
        return x + total, error.args
    finally:
        x = x * 2


@program
def computes_under_a_manager(x: Any) -> Any:
    with torch.no_grad():
        y = x * 2
        total = 0
        while total < 200_000:
            total += 1
        y = y + total
    return y, torch.is_grad_enabled()


@program
def raises_after_long(x: Any) -> Any:
    y = x * 2
    for i in range(150_000):
        if i == 149_999:
            raise ValueError(i)
    return y


@left_to_eager
def walks_a_deep_list(x: Any) -> Any:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    depth = 0
    while deep:
        deep = deep[0]
        depth += 1
    return x + depth


@program
def recurses_too_deep(x: Any) -> Any:
    def down(n: int) -> int:
        return 1 + down(n + 1)

    try:
        return x + down(0)
    except RecursionError:
        return x - 1


@left_to_eager
def compares_deep_lists(x: Any) -> Any:
    first: Any = []
    second: Any = []
    for _ in range(5000):
        first, second = [first], [second]
    try:
        return x + (first == second)
    except RecursionError:
        return x - 1


@program
def goes_through_a_long_chain() -> Any:
    model = torch.nn.Sequential(*[torch.nn.Identity() for _ in range(2000)], torch.nn.Linear(2, 2))
    return model, torch.ones(2)


@program
def goes_down_nested_modules() -> Any:
    model: Any = torch.nn.Linear(2, 2)
    for _ in range(60):
        model = torch.nn.Sequential(model)
    return model, torch.ones(2)
