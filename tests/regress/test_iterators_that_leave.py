"""Builtin iterators that are made in a frame and leave it, begun or not."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import braze

# They say of themselves how they are to be made again. From Python 3.14 on these of itertools do
# not, and keep counts and flags where nobody sees them: a frame that lets them out breaks.
SILENT = {
    *("accumulate", "combinations", "cycle", "dropwhile", "islice", "permutations", "product"),
    *("takewhile", "zip_longest"),
}
MAKERS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "accumulate": lambda x: itertools.accumulate([1, 2, 3]),
    "chain": lambda x: itertools.chain([1, x], [3]),
    "combinations": lambda x: itertools.combinations([1, 2, 3], 2),
    "compress": lambda x: itertools.compress([1, 2, x], [0, 1, 1]),
    "count": lambda x: itertools.count(3, 2),
    "cycle": lambda x: itertools.cycle([1, x]),
    "dropwhile": lambda x: itertools.dropwhile(lambda n: n < 2, [1, 2, 3]),
    "enumerate": lambda x: enumerate([5, x]),
    "filterfalse": lambda x: itertools.filterfalse(lambda n: n == 1, [0, 1, 2]),
    "from_iterable": lambda x: itertools.chain.from_iterable([[1], [x, 3]]),
    "islice": lambda x: itertools.islice([1, 2, x, 4, 5], 1, 4),
    "map": lambda x: map(abs, [-1, -2]),
    "permutations": lambda x: itertools.permutations([1, 2, 3], 2),
    "product": lambda x: itertools.product([1, 2], [3, 4]),
    "repeat": lambda x: itertools.repeat(x, 3),
    "starmap": lambda x: itertools.starmap(max, [(1, 2), (3, 4)]),
    "takewhile": lambda x: itertools.takewhile(lambda n: n < 3, [1, 2, 3]),
    "zip": lambda x: zip([1, 2], [x, 3]),
    "zip_longest": lambda x: itertools.zip_longest([1], [2, x]),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("taken", [0, 1])
@pytest.mark.parametrize("name", MAKERS)
def test_what_is_left_of_it(name: str, taken: int) -> None:
    is_silent = name in SILENT and sys.version_info >= (3, 14)
    graphs = 0

    def backend(module: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return module

    def program(x: torch.Tensor) -> Any:
        iterator = MAKERS[name](x)
        first = [next(iterator) for _ in range(taken)]
        return x + 1, first, iterator

    def seen(function: Any) -> str:
        result, first, iterator = function(torch.arange(3.0))
        return repr((result, first, type(iterator), list(itertools.islice(iterator, 4))))

    compiled = braze.compile(program, backend=backend, fullgraph=not is_silent)
    for _ in range(2):
        assert seen(compiled) == seen(program)
    assert is_silent or graphs == 1


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_where_warnings_are_errors() -> None:
    compiled = braze.compile(lambda x: (x + 1, itertools.count(3)), backend="eager")
    result, numbers = compiled(torch.ones(2))
    assert result.tolist() == [2, 2] and next(numbers) == 3
