"""Reads and writes at random keys with masks among them: how many elements a mask chooses is data,
so no refusal of an operator asked about made-up masks says anything of the program's."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest
import torch

import braze

_CASES = 48


def _masked_key(draw: random.Random, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """A key with at least one mask. Of tensors beside it, each has as many elements as it chooses,
    or one."""
    masked = draw.randrange(len(shape))
    rank = draw.choice([1, 1, min(2, len(shape) - masked)])
    count = draw.randrange(1, shape[masked] + 1)
    numbers = torch.Generator().manual_seed(draw.randrange(1 << 20))
    size = torch.Size(shape[masked : masked + rank]).numel()
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.randperm(size, generator=numbers)[:count]] = True
    key: list[Any] = []
    for place, length in enumerate(shape):
        if place == masked:
            key.append(mask.view(shape[masked : masked + rank]))
        elif not masked < place < masked + rank:
            rows = draw.choice([count, 1])
            options: list[Any] = [slice(None), slice(0, length, 2), None, draw.randrange(length)]
            options.append(torch.randint(length, (rows,), generator=numbers))
            chosen = draw.choice(options)
            key.append(chosen)
            if chosen is None:
                key.append(slice(None))
    return tuple(key) if len(key) > 1 else (key[0],)


def _read(x: torch.Tensor, *key: Any) -> torch.Tensor:
    return x[key] * 2


def _written(x: torch.Tensor, value: torch.Tensor, *key: Any) -> torch.Tensor:
    x = x.clone()
    x[key] = value
    return x


def _put(x: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return x.index_put((mask,), value, accumulate=True)


def _added(x: torch.Tensor, value: torch.Tensor, *key: Any) -> torch.Tensor:
    x = x.clone()
    x[key] += value
    return x


def _compared(program: Any, *given: Any) -> None:
    """Eager's result, three times, and no call left to eager for what only capture raised."""
    braze.reset()
    compiled = braze.compile(program, dynamic=None)
    wanted = program(*given)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(compiled(*given), wanted)
    assert not [why for row in braze.status() for why in row.left_to_eager]


@pytest.mark.parametrize("seed", range(_CASES))
def test_what_a_mask_chooses_is_data(seed: int) -> None:
    draw = random.Random(seed)
    shape = tuple([draw.choice([2, 3, 5]) for _ in range(draw.randrange(1, 4))])
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    key = _masked_key(draw, shape)
    value = torch.randn(x[key].shape, generator=torch.Generator().manual_seed(seed))
    _compared(_read, x, *key)
    _compared(_written, x, value, *key)
    _compared(_added, x, value, *key)
    (mask,) = [part for part in key if isinstance(part, torch.Tensor) and part.dtype is torch.bool]
    if mask.dim() == 1 and len(mask) == len(x):
        _compared(_put, x, x[mask] + 1, mask)
