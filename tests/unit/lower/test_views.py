"""Views of views: coordinates that stay as they are cost nothing, and the others are right."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy
import pytest
import torch

import braze
from braze.ir.types import Size
from braze.lower.coordinates import axis_coordinates, make_axes, product
from braze.lower.operators.views import reshape_map
from braze.shapes.expr import Expr, Symbol, as_expr
from braze.shapes.substitution import evaluate
from braze.trace import Journal

A, B, C = (Symbol(name, 2, None) for name in ("s0", "s1", "s2"))
a, b, c = map(as_expr, (A, B, C))
SIZES = {A: 2, B: 3, C: 5}

# Source, target, and how many of the coordinates are divided.
CASES: dict[str, tuple[tuple[Size, ...], tuple[Size, ...], int]] = {
    "a one goes": ((1, a, b, c), (a, b, c), 0),
    "a one comes": ((a, b, c), (1, a, b, c), 0),
    "ones move": ((a, 1, b, 1), (1, a, b), 0),
    "heads apart": ((a, b, 12), (a, b, 3, 4), 0),
    "heads together": ((a, b, 3, 4), (a, b, 12), 2),
    "a batch apart": ((a * 3, b, c), (a, 3, b, c), 0),
    "a batch together": ((a, 3, b, c), (a * 3, b, c), 2),
    "two symbols apart": ((a * b, c), (a, b, c), 0),
    "two symbols together": ((a, b, c), (a * b, c), 2),
    "all in one": ((a, b, 4), (a * b * 4,), 3),
    "numbers": ((2, 6, 5), (4, 3, 5), 2),
    "nothing but ones": ((1, 1), (1,), 0),
    "no dimension": ((), (1, 1), 0),
}


def _known(shape: Sequence[Size]) -> tuple[int, ...]:
    return tuple([evaluate(as_expr(size), SIZES) for size in shape])


@pytest.mark.parametrize(("source", "target", "divided"), CASES.values(), ids=CASES)
def test_coordinates(source: tuple[Size, ...], target: tuple[Size, ...], divided: int) -> None:
    axes = make_axes("i", target)
    found = reshape_map(source, target)(axis_coordinates(axes))
    assert all(isinstance(one, Expr) for one in found)
    assert sum("//" in str(one) or "%" in str(one) for one in found) == divided, found
    assert product(_known(source)) == product(_known(target))
    places = numpy.arange(product(_known(source))).reshape(_known(source))
    moved = places.reshape(_known(target))
    for point in itertools.product(*map(range, _known(target))):
        values: dict[Symbol, int] = {**SIZES, **{s: at for (s, _), at in zip(axes, point)}}
        at = tuple([evaluate(as_expr(one), values) for one in found])  # type: ignore[arg-type]
        assert places[at] == moved[point]


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_of_unknown_sizes_copies_nothing(batch: int, journal: Journal) -> None:
    """Products read heads where they are, and the scores are one kernel's. Each was copied, with
    a division at every element: 3.4 times the time."""

    def attention(q: Any, k: Any, v: Any, hidden: Any) -> Any:
        scores = (q @ k.mT * 0.25).masked_fill(hidden, float("-inf"))
        return torch.softmax(scores, -1) @ v

    options = {"dynamic": True, "skip_passes": ("fuse_attention",)}
    compiled = braze.compile(attention, options=options)
    for length in (5, 9):
        given = [torch.randn(batch, 3, length, 8) for _ in range(3)]
        given.append(torch.arange(length) > length - 2)
        torch.testing.assert_close(compiled(*given), attention(*given))
    (record,) = journal.records()
    assert record.extern_ops == ("aten.bmm.default",) * 2
    assert record.counters["kernels"] == 1
