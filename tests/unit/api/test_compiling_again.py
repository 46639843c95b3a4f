"""A program that compiles one function again and again, `torch.compile(f)(x)` at each step, runs
what was compiled the first time; what says another compile gets one of its own."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.runtime.dispatch.recent_dispatchers import RecentDispatchers
from braze.targets import make_dispatcher
from braze.trace import Journal

X = torch.arange(3.0)


class Graphs:
    """A backend that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Any:
        self.count += 1
        return graph.forward


def straight(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + x.cos()


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    braze.graph_break()
    return y + x.cos()


class Doubling:
    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


LINEAR = torch.nn.Linear(3, 3)
DOUBLING = Doubling()
TARGETS: dict[str, tuple[Callable[..., Any], int]] = {
    "function": (straight, 1),
    "function that breaks": (broken, 2),
    "module": (LINEAR, 1),
    "method": (DOUBLING.times, 1),
}


@pytest.mark.parametrize("name", TARGETS)
def test_entries_outlive_what_was_compiled(name: str) -> None:
    target, graphs = TARGETS[name]
    counter = Graphs()
    for _ in range(3):
        torch.testing.assert_close(braze.compile(target, backend=counter)(X), target(X))
    assert counter.count == graphs
    again = Graphs()  # another compiler
    braze.compile(target, backend=again)(X)
    assert again.count == graphs
    braze.reset()
    braze.compile(target, backend=counter)(X)
    assert counter.count == 2 * graphs


def test_other_options_compile_anew() -> None:
    counter = Graphs()
    kinds: list[dict[str, Any]] = [{}, {"dynamic": True}, {"fullgraph": True}, {"name": "other"}]
    for _ in range(2):
        for options in kinds:
            braze.compile(straight, backend=counter, **options)(X)
    assert counter.count == len(kinds)
    with braze.config.patch(recompile_limit=3):
        braze.compile(straight, backend=counter)(X)
    assert counter.count == len(kinds) + 1


def test_inputs_of_another_kind_count_together() -> None:
    counter = Graphs()
    for size in (3, 4, 5, 6):  # the second makes the size a symbol
        braze.compile(straight, backend=counter)(torch.ones(size))
    assert counter.count == 2


def test_objects_have_limits_of_their_own() -> None:
    """Twenty objects whose method is compiled are no twenty recompiles of one function."""
    counter = Graphs()
    objects = [Doubling() for _ in range(20)]
    for one in objects:
        times = braze.compile(one.times, backend=counter, fullgraph=True)
        assert torch.equal(times(X), X * 2)
    assert counter.count == len(objects)


def test_orders_of_capture_are_followed(journal: Journal) -> None:
    def helper(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def program(x: torch.Tensor, helper: Any) -> torch.Tensor:
        return helper(x) * 2

    first = braze.explain(program)(X, helper)
    braze.compile(program)(X, helper)
    braze.allow_in_graph(helper)
    braze.compile(program)(X, helper)
    records = [record for record in journal.records() if record.function == program.__qualname__]
    assert first.graph_count == 1 and len(records) == 2


def test_callables_of_one_function_share_a_row() -> None:
    def rows() -> list[tuple[int, int]]:
        rows = braze.status().rows
        return [(row.calls, row.entries) for row in rows if row.name == "one of two"]

    named: dict[str, Any] = {"backend": "eager", "name": "one of two"}
    first, second = braze.compile(straight, **named), braze.compile(straight, **named)
    first(X)
    second(X)
    assert rows() == [(2, 1)]
    del first
    assert rows() == [(2, 1)]
    del second
    assert not rows()


def test_nothing_outlives_its_function() -> None:
    def make() -> Any:
        return eval("lambda x: x * 2")  # closes over nothing

    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
    made = [make() for _ in range(100)]
    for function in made:
        braze.compile(function, backend="eager")(X)
    braze.compile(module, backend="eager")(X)
    gone = [*map(weakref.ref, made), weakref.ref(module), _closed_over()]
    del made, function, module
    gc.collect()
    assert not [one for one in gone if one() is not None]


def _closed_over() -> weakref.ref[Any]:
    """What a compiled function that breaks closes over."""
    held = torch.nn.Linear(3, 3)

    def closing(x: torch.Tensor) -> torch.Tensor:
        braze.graph_break()
        return held(x)

    braze.compile(closing, backend="eager")(X)
    return weakref.ref(held)


def test_only_the_last_are_kept() -> None:
    recent, functions = RecentDispatchers(most=2), [eval("lambda x: x") for _ in range(3)]

    def make() -> Any:
        order = braze.api._resolve_order("eager", None, False, None, None, Journal())
        return make_dispatcher(order.options, order.backend, order.journal)

    first, second, third = (recent.find(function, 0, make) for function in functions)
    assert recent.find(functions[1], 0, make) is second
    assert recent.find(functions[2], 0, make) is third
    assert recent.find(functions[0], 0, make) is not first


def test_threads_compile_one_function_once() -> None:
    counter, results = Graphs(), []
    threads = [
        threading.Thread(target=lambda: results.append(braze.compile(straight, backend=counter)(X)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.count == 1 and len(results) == 4
    assert all(torch.equal(result, straight(X)) for result in results)
