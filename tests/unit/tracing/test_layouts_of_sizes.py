"""Strides of symbolic sizes against eager's, at all sizes that the guards allow."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from braze.shapes.expr import as_expr
from braze.shapes.facts import Facts
from braze.shapes.substitution import evaluate
from braze.shapes.symbolic import SymbolicSize, plain_size, symbol_size
from braze.tracing.shape_rules.strides import pointwise_layout, suggests_channels_last
from braze.tracing.shape_rules.views import view_stride

Layout = tuple[tuple[Any, ...], tuple[Any, ...]]


class Sizes:
    """Two symbolic sizes, and numbers in their places."""

    def __init__(self, hints: tuple[int, int]) -> None:
        self.facts = Facts()
        self.symbols = [self.facts.new_symbol(name, n) for name, n in zip("ab", hints)]
        self.symbolic = [symbol_size(self.facts, symbol) for symbol in self.symbols]

    def allowed(self) -> Iterator[dict[Any, int]]:
        """Numbers for which all guards hold."""
        for numbers in itertools.product(range(2, 8), repeat=2):
            found = self.facts.assignment(dict(zip(self.symbols, numbers)))
            if found is not None:
                yield found

    def sparse(self, layout: random.Random, rank: int) -> Layout:
        """A part of a dense tensor: every second of one dimension, permuted."""
        shape = [layout.choice((1, 2, *self.symbolic)) for _ in range(rank)]
        order = layout.sample(range(rank), rank)
        stride, step = [0] * rank, 1
        for dim in order:
            stride[dim] = step
            step = plain_size(step * shape[dim])
        for dim in layout.sample(range(rank), min(rank, layout.randint(0, 2))):
            shape[dim] = plain_size((shape[dim] + 1) // 2)
            stride[dim] = plain_size(stride[dim] * 2)
        return tuple(shape), tuple(stride)


def numbers_of(values: tuple[Any, ...], at: dict[Any, int]) -> tuple[int, ...]:
    return tuple(
        evaluate(v.expr if isinstance(v, SymbolicSize) else as_expr(v), at) for v in values
    )


def tensor_of(layout: Layout, at: dict[Any, int]) -> torch.Tensor:
    return torch.empty_strided(*(numbers_of(part, at) for part in layout))


@pytest.mark.parametrize("seed", range(150))
def test_views(seed: int) -> None:
    layout = random.Random(seed)
    sizes = Sizes((layout.randint(2, 7), layout.randint(2, 7)))
    shape, stride = sizes.sparse(layout, layout.randint(1, 4))
    places = sorted(layout.sample(range(len(shape) + 1), layout.randint(0, 1)))
    groups = [list(shape)]
    if places:
        groups = [list(shape[: places[0]]), list(shape[places[0] :])]
    wanted: list[Any] = []
    for group in groups:  # some are joined, some stay as they are
        product: Any = 1
        for size in group:
            product = plain_size(product * size)
        wanted += group if layout.random() < 0.4 else [product]
        wanted += [1] * layout.randint(0, 1)
    found = view_stride(shape, stride, tuple(wanted))
    tried = 0
    for at in sizes.allowed():
        x, to = tensor_of((shape, stride), at), numbers_of(tuple(wanted), at)
        if 0 in x.shape:
            continue
        tried += 1
        try:
            expected: Any = x.view(to).stride()
        except RuntimeError:
            expected = None
        assert (None if found is None else numbers_of(found, at)) == expected, (x.shape, to)
    assert tried


@pytest.mark.parametrize("seed", range(150))
def test_pointwise(seed: int) -> None:
    layout = random.Random(seed)
    sizes = Sizes((layout.randint(2, 7), layout.randint(2, 7)))
    operands = [sizes.sparse(layout, layout.randint(2, 5))]
    if layout.random() < 0.5:
        operands.append(((), ()))
    shape, stride = pointwise_layout(*operands)
    for at in sizes.allowed():
        tensors = [tensor_of(operand, at) for operand in operands]
        expected = torch.add(tensors[0], tensors[-1])
        assert numbers_of(shape, at) == tuple(expected.shape)
        assert numbers_of(stride, at) == expected.stride()


@pytest.mark.parametrize("seed", range(100))
def test_channels_last(seed: int) -> None:
    layout = random.Random(seed)
    sizes = Sizes((layout.randint(2, 7), layout.randint(2, 7)))
    given = sizes.sparse(layout, 4)
    found = suggests_channels_last(*given)
    for at in sizes.allowed():
        assert found == suggests_channels_last(*(numbers_of(part, at) for part in given))


def test_what_makes_no_difference_is_not_asked() -> None:
    sizes = Sizes((5, 4))
    a, b = sizes.symbolic
    half = plain_size((a + 1) // 2)
    assert view_stride((b, half), (a, 2), (b, 1, half)) == (a, plain_size(half * 2), 2)
    assert not suggests_channels_last((1, 1, a, 1), (a, a, 1, 2))
    pointwise_layout(((1, 1, a, 1), (a, a, 1, 2)))
    served = {at[sizes.symbols[0]] for at in sizes.allowed()}
    assert served == {3, 4, 5, 6, 7}  # at 2, half of it is 1
