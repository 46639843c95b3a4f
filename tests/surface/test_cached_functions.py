"""A part of the sweep of cached functions; BRAZE_CACHED_FUNCTIONS says how many programs."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest
import torch

import braze
from tests.surface.cached_functions import CACHES, KEYS, USES, Program, difference, program

_COUNT = int(os.environ.get("BRAZE_CACHED_FUNCTIONS", "40"))


@pytest.mark.parametrize("seed", range(_COUNT))
def test_programs(seed: int) -> None:
    chosen = program(seed)
    assert difference(chosen) is None, chosen


@pytest.mark.parametrize("seed", range(_COUNT, _COUNT + _COUNT // 2))
def test_programs_of_a_whole_graph(seed: int) -> None:
    chosen = program(seed)
    assert difference(chosen, fullgraph=True) is None, chosen


@pytest.mark.parametrize("key", KEYS)
def test_every_key(key: str) -> None:
    chosen = Program("lru_cache of 2", key, "counts", "in turns", ("written to", "filled"))
    assert difference(chosen) is None, chosen


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("cache", [*CACHES][:4])
def test_every_use(cache: str, use: str) -> None:
    chosen = Program(cache, "ints", "a tensor", use, ("state, cleared", "evicted"))
    assert difference(chosen) is None, chosen


def test_first_call_is_part_of_the_graph() -> None:
    calls: list[int] = []

    @functools.lru_cache
    def table(size: int) -> torch.Tensor:
        calls.append(size)
        return torch.arange(float(size))

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + table(3) + table(3)

    explained = braze.explain(f)
    reports = [explained(torch.ones(3)) for _ in range(3)]
    assert [(r.graph_count, len(r.break_reasons)) for r in reports] == [(1, 0), (1, 0), (0, 0)]
    assert calls == [3]
    assert table.cache_info()[:2] == (5, 1)


def test_graph_that_caches_a_constant_serves_later_calls() -> None:
    @functools.lru_cache(maxsize=2)
    def is_small(size: int) -> bool:
        return size < limits[-1]

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if is_small(3) else x

    limits = (5,)
    explained = braze.explain(f)
    reports = [explained(torch.ones(3)) for _ in range(3)]
    assert [(r.graph_count, len(r.break_reasons)) for r in reports] == [(1, 0), (0, 0), (0, 0)]
    assert is_small.cache_info()[:2] == (2, 1)
    limits = (1,)
    assert torch.equal(explained(torch.ones(3)).result, torch.full((3,), 2.0))
    is_small.cache_clear()
    assert is_small(3) is False
    limits = (5,)
    assert torch.equal(explained(torch.ones(3)).result, torch.ones(3))
    assert is_small.cache_info()[:2] == (1, 1)


def test_full_cache_keeps_what_the_frame_put_there() -> None:
    @functools.lru_cache(maxsize=2)
    def pair(size: int) -> list[int]:
        return [size]

    pair(1), pair(2)
    f = braze.compile(lambda x: (x + 1, pair(3), pair(4), pair(3)), fullgraph=True)
    _, three, _, again = f(torch.ones(1))
    assert three is again
    assert pair.cache_info()[:2] == (1, 4)


def test_full_cache_drops_what_the_frame_asked_of_it_first() -> None:
    @functools.lru_cache(maxsize=1)
    def pair(size: int) -> list[int]:
        return [size]

    f = braze.compile(lambda x: (x + 1, pair(3), pair(4), pair(3)))
    _, three, _, again = f(torch.ones(1))
    assert three is not again
    assert pair.cache_info()[:2] == (0, 3)


def test_no_capture_that_is_refused_calls_a_cached_function() -> None:
    calls: list[int] = []

    @functools.cache
    def counted(n: int) -> int:
        calls.append(n)
        raise ValueError(n)

    def f(x: torch.Tensor) -> Any:
        return x * counted(2)

    with pytest.raises(ValueError):
        braze.compile(f)(torch.ones(1))
    assert calls == [2]
    assert counted.cache_info()[:2] == (0, 1)


def test_graph_serves_other_tensors_and_fills_the_cache() -> None:
    @functools.cache
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    f = braze.compile(lambda x: (doubled(x), x + 1))
    tensors = [torch.full((2,), float(n)) for n in range(4)]
    explained = braze.explain(lambda x: (doubled(x), x + 1))
    results = [f(x)[0] for x in tensors]
    for x in tensors:
        x.add_(1)
    assert all(f(x)[0] is result for x, result in zip(tensors, results))
    assert doubled.cache_info()[:2] == (4, 4)
    report = explained(torch.ones(2))
    assert report.graph_count == 1 and not report.break_reasons


def test_functions_of_torchs_have_first_results_behind_writes() -> None:
    """Optimizers of PyTorch 2.15 ask for a device's module when their state was made."""
    seen: list[int] = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        seen.append(1)
        module = torch.get_device_module("cpu")
        assert torch.get_device_module("cpu") is module
        return x + (1 if module is torch.cpu else 2)

    torch.get_device_module.cache_clear()
    compiled = braze.compile(ask, fullgraph=True)
    for calls in range(1, 4):
        assert compiled(torch.zeros(2)).tolist() == [1, 1] and len(seen) == calls
        assert torch.get_device_module.cache_info().currsize == 1
