"""Inference mode that a function enters by itself: results are inference tensors where eager's are,
and one graph computes what stands in one block."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.errors import GraphBreakError

torch.manual_seed(0)
MODEL = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).eval()
CACHE = torch.zeros(8, 3)


def block(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        return MODEL(x)


@torch.inference_mode()
def decorated(x: torch.Tensor) -> Any:
    return MODEL(x).relu()


def of_another(x: torch.Tensor) -> Any:
    return decorated(x)


@torch.inference_mode()
def with_a_cache(x: torch.Tensor) -> Any:
    CACHE[2] = x[0]
    return CACHE[:3].sum(0), x.t(), x


@torch.inference_mode()
def asks(x: torch.Tensor) -> Any:
    for _ in range(3):
        x = MODEL(x)
    return x[0], torch.is_inference_mode_enabled(), x.is_inference(), x.requires_grad


def nested(x: torch.Tensor) -> Any:
    with torch.no_grad(), torch.inference_mode(), torch.inference_mode():
        return MODEL(x), x.sum().item()


@torch.inference_mode(False)
def not_at_all(x: torch.Tensor) -> Any:
    return x + 1


def and_goes_on(x: torch.Tensor) -> Any:
    return decorated(x) + 1


def behind_others(x: torch.Tensor) -> Any:
    x = x * 2
    with torch.inference_mode():
        y = MODEL(x)
    return y, x


def twice(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = MODEL(x)
    with torch.inference_mode():
        return y, y + 1


def ends_in_the_middle(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = MODEL(x)
        print(".")
        return y + 1


def mode_ends_inside(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = MODEL(x)
        with torch.inference_mode(False):
            return y, x * 2


ONE_GRAPH = [block, decorated, of_another, with_a_cache, asks, nested, not_at_all]
SEVERAL = [and_goes_on, behind_others, twice, ends_in_the_middle, mode_ends_inside]


def _facts(made: Any) -> list[Any]:
    """Values and what tells inference tensors from others."""
    return [
        (x.detach().clone(), x.is_inference(), x.requires_grad, x.stride(), x.is_contiguous())
        if isinstance(x, torch.Tensor)
        else x
        for x in (made if isinstance(made, tuple) else (made,))
    ]


def _outcome(function: Callable[..., Any], rows: int, tracks: bool) -> Any:
    torch.manual_seed(rows)
    CACHE.zero_()
    x = torch.randn(rows, 3, requires_grad=tracks)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        made = _facts(function(x))
    return made, CACHE.clone(), len(said.getvalue()), x.is_inference()


@pytest.mark.parametrize("tracks", [False, True])
@pytest.mark.parametrize("backend", ["braze", "eager", "aot_eager"])
@pytest.mark.parametrize("program", [*ONE_GRAPH, *SEVERAL], ids=lambda f: f.__name__)
def test_results_are_of_eagers_kind(program: Any, backend: str, tracks: bool) -> None:
    """In the mode outside, too, and again behind it."""
    compiled = braze.compile(program, backend=backend)
    for rows, outside in ((4, False), (4, True), (5, False), (4, False)):
        with torch.inference_mode(outside):
            right, found = (_outcome(one, rows, tracks) for one in (program, compiled))
        torch.testing.assert_close(found, right)
    assert not sum(row.calls_left for row in braze.status().rows), str(braze.status())


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda f: f.__name__)
def test_a_block_is_one_graph(program: Any) -> None:
    compiled = braze.compile(program, fullgraph=True)
    for rows in (4, 4, 5):
        torch.testing.assert_close(_outcome(compiled, rows, False), _outcome(program, rows, False))
    (row,) = braze.status().rows
    assert row.graphs == 2 and not row.breaks


@pytest.mark.parametrize("program", SEVERAL, ids=lambda f: f.__name__)
def test_what_is_outside_of_it_is_another_graph(program: Any) -> None:
    compiled = braze.compile(program)
    for _ in range(2):
        _outcome(compiled, 4, False)
    assert braze.status().rows[-1].graphs == 2
    with pytest.raises(GraphBreakError, match=r"global-state|input-output"):
        _outcome(braze.compile(program, fullgraph=True), 4, False)
