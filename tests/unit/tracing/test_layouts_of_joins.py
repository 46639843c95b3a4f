"""Joins, stacks, indices, triangles, group norm and Fourier transforms in random layouts: rules and
kernels agree."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from braze.tracing.shape_rules.infer import RULES
from tests.differential.test_shape_rules import agree, described

aten = torch.ops.aten


def _laid_out(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """The tensor, its memory in some order, with gaps, or one element for a whole dimension."""
    kind = chance.randrange(5)
    if kind == 0 and tensor.dim() == 4:
        return tensor.contiguous(memory_format=torch.channels_last)
    if kind == 1 and tensor.dim() > 1:
        order = list(range(tensor.dim()))
        chance.shuffle(order)
        back = [order.index(dim) for dim in range(tensor.dim())]
        return tensor.permute(order).contiguous().permute(back)
    if kind == 2:
        return torch.stack([tensor, tensor], -1)[..., 0]
    if kind == 3 and tensor.numel():
        dim = chance.randrange(tensor.dim()) if tensor.dim() else 0
        return tensor.narrow(dim, 0, 1).expand(tensor.shape) if tensor.dim() else tensor
    return tensor


def _join(chance: random.Random) -> tuple[Any, ...]:
    shape = [chance.choice((0, 1, 1, 2, 3)) for _ in range(chance.randint(1, 5))]
    dim = chance.randrange(len(shape))
    parts = []
    for _ in range(chance.randint(1, 3)):
        shape[dim] = chance.choice((0, 1, 2, 3))
        parts.append(_laid_out(torch.zeros(shape), chance))
    if chance.random() < 0.2:
        parts.insert(chance.randint(0, len(parts)), torch.zeros(0, dtype=torch.float64))
    return parts, dim


def _stacked(chance: random.Random) -> tuple[Any, ...]:
    shape = [chance.choice((0, 1, 1, 2, 3)) for _ in range(chance.randint(0, 5))]
    parts = [_laid_out(torch.zeros(shape), chance) for _ in range(chance.randint(1, 3))]
    return parts, chance.randint(-len(shape) - 1, len(shape))


def _indexed(chance: random.Random) -> tuple[Any, ...]:
    rank = chance.randint(1, 3)
    shape = [chance.choice((1, 2, 3, 4)) for _ in range(chance.randint(0, 4))]
    indices = []
    for _ in range(rank):
        own = [1 if chance.random() < 0.4 else size for size in shape[chance.randrange(2) :]]
        indices.append(_laid_out(torch.zeros(own, dtype=torch.int64), chance))
    return _laid_out(torch.zeros([2] * rank), chance), indices


def _matrices(chance: random.Random) -> tuple[Any, ...]:
    shape = [chance.choice((0, 1, 1, 2, 3)) for _ in range(chance.randint(2, 5))]
    return _laid_out(torch.zeros(shape), chance), chance.randint(-1, 1)


def _normed(chance: random.Random) -> tuple[Any, ...]:
    shape = [chance.choice((1, 2)), chance.choice((2, 4)), *(chance.randint(1, 3) for _ in "hw")]
    x, weight = _laid_out(torch.zeros(shape), chance), torch.ones(shape[1])
    return x, weight, weight, shape[0], shape[1], shape[2] * shape[3], 2, 1e-5


def _transformed(kind: str) -> Any:
    def make(chance: random.Random) -> tuple[Any, ...]:
        shape = [chance.randint(1, 4) for _ in range(chance.randint(1, 4))]
        dim = chance.randrange(len(shape))
        x = torch.zeros(shape, dtype=torch.float32 if kind == "real" else torch.complex64)
        whole = 2 * (shape[dim] - 1) or 1
        last = {"real": True, "half": whole, "complex": chance.random() < 0.5}[kind]
        return _laid_out(x, chance), [dim], 0, last

    return make


@pytest.mark.parametrize(
    ("op", "make", "least"),
    [
        (aten.cat.default, _join, 300),
        (aten.stack.default, _stacked, 200),
        (aten.index.Tensor, _indexed, 300),
        (aten.tril.default, _matrices, 300),
        (aten.native_group_norm.default, _normed, 100),
        (aten._fft_r2c.default, _transformed("real"), 300),
        (aten._fft_c2r.default, _transformed("half"), 300),
        (aten._fft_c2c.default, _transformed("complex"), 300),
    ],
    ids=["cat", "stack", "index", "tril", "group norm", "r2c", "c2r", "c2c"],
)
def test_rules_say_what_kernels_give(op: Any, make: Any, least: int) -> None:
    chance = random.Random(11)
    compared = 0
    for _ in range(300):
        arguments = make(chance)
        have = RULES[op](*described(arguments))
        if have is not NotImplemented:
            want = described(op(*arguments))
            assert agree(want, have), (described(arguments), want, have)
            compared += 1
    assert compared >= least
