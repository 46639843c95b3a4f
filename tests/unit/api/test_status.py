"""`braze.status()`: a row for each compiled callable that is alive."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import braze
from braze.runtime.guards.native_extension import LOADER

X = torch.ones(3)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    braze.reset()
    yield
    braze.reset()


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def branching(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    return y + 1 if y.sum() > 0 else y - 1


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_functions_and_what_they_hold() -> None:
    made = braze.compile(branching, dynamic=False)
    for size in (2, 3, 2):
        made(torch.ones(size))
    row = braze.status()["branching"]
    assert (row.calls, row.calls_left, row.rests_left, row.graphs) == (3, 0, 0, 4)
    assert row.entries == 4 and [note.code for note in row.breaks] == ["data-dependent-branch"]
    assert row.times_broken == 3 and row.recompiles == 2
    assert "size mismatch" in row.last_recompile and __file__ in row.last_recompile
    assert row.origin == f"{__file__}:{branching.__code__.co_firstlineno}"


def test_modules_methods_and_torch_compile() -> None:
    model = Model()
    module, method = braze.compile(model), braze.compile(model.scaled)
    theirs = torch.compile(double, backend="braze")
    for _ in range(5):
        [call(X) for call in (module, method, theirs)]
    module.forward(X)
    status = braze.status()
    assert status["Model"].calls == 6 and status["Model"].graphs >= 1
    assert status["Model.scaled"].calls == 5
    assert sorted(row.calls for row in status) == [5, 5, 6] and status.calls == 16
    assert not status.calls_left


def test_calls_of_callees_are_not_the_users() -> None:
    def calling(x: torch.Tensor) -> torch.Tensor:
        return branching(x) + branching(x)

    made = braze.compile(calling)
    made(X)
    made(X)
    assert [row.calls for row in braze.status()] == [2]


def test_fast_calls_are_counted() -> None:
    LOADER.wait()
    made = braze.compile(double)
    for _ in range(500):
        made(X)
    assert made._entrance is not None and braze.status()["double"].calls == 500
    tally = made.dispatcher.tally
    assert tally.calls.cell[0] > 400, "the entrance in C makes no calls"


def test_dropped_callables_disappear() -> None:
    function, module = braze.compile(double), braze.compile(Model())
    function(X), module(X)
    assert len(braze.status()) == 2
    del module
    assert [row.name for row in braze.status()] == ["double"]
    del function
    assert not len(braze.status())


def test_reset_forgets_counts() -> None:
    made = braze.compile(double)
    made(X)
    braze.reset()
    assert not len(braze.status())
    made(X)
    row = braze.status()["double"]
    assert (row.calls, row.graphs, row.recompiles) == (1, 1, 0)


def test_uncalled_callables_have_a_row() -> None:
    made = braze.compile(double)
    row = braze.status()["double"]
    assert (row.calls, row.entries) == (0, 0) and made is not None


def test_copies_have_rows_of_their_own() -> None:
    module = braze.compile(Model())
    copied = copy.deepcopy(module)
    module(X), copied(X), copied(X)
    assert sorted(row.calls for row in braze.status()) == [1, 2]


def test_runners_have_rows_of_their_own() -> None:
    made = braze.compile(double, dynamic=False)
    made(X)
    runner = braze.run(made)
    runner(X), runner(torch.ones(4))
    assert [(row.calls, row.calls_left) for row in braze.status()] == [(1, 0), (2, 1)]


def test_threads_lose_no_count() -> None:
    LOADER.wait()
    made = braze.compile(branching)
    made(X)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=lambda: [made(X) for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            braze.status()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert braze.status()["branching"].calls == 801


def test_reasons_without_end_are_bounded() -> None:
    def raising(x: Any, n: int) -> Any:
        raise ValueError(n)

    made = braze.compile(raising)
    for n in range(100):
        with pytest.raises(ValueError):
            made(X, n)
    row = braze.status()[raising.__qualname__]
    assert row.calls_left == row.calls == 100 and len(row.left_to_eager) <= 65


def test_prints_as_a_table() -> None:
    made = braze.compile(branching)
    made(X)
    text = str(braze.status())
    assert "left to eager" in text and "branching" in text and "data-dependent-branch" in text
    braze.reset()
    assert str(braze.status()) == "Nothing is compiled."
    with pytest.raises(KeyError):
        braze.status()["branching"]


def test_graphs_by_eager_kernels_say_so() -> None:
    made = braze.compile(double)
    made(torch.ones(3, device="meta"))
    assert "meta" in braze.status()["double"].eager_kernels[0]
