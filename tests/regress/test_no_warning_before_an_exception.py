"""Where the program raises for a number that the graph computes, a warning said first that the
graph had failed and the frame was run eagerly: the graph was right."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import braze
from braze.errors import BrazeWarning


def fills(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros(2, dtype=torch.float16).fill_(x.sum().item())


def draws(x: torch.Tensor) -> torch.Tensor:
    return torch.bernoulli(x)


def indexes(x: torch.Tensor) -> torch.Tensor:
    return x[x.long()] + 1


def behind_a_break(x: torch.Tensor) -> torch.Tensor:
    print(end="")
    return fills(x * 1) + 1


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", [fills, draws, indexes, behind_a_break])
def test_only_the_exception_is_seen(program: Any, backend: str) -> None:
    compiled = braze.compile(program, backend=backend)
    good, bad = torch.full((2,), 0.5), torch.full((2,), 1e6)
    torch.manual_seed(0)
    expected = program(good)
    torch.manual_seed(0)
    assert torch.equal(compiled(good), expected)
    with pytest.raises((RuntimeError, IndexError)) as eager:
        program(bad)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BrazeWarning)
        with pytest.raises((RuntimeError, IndexError)) as ours:
            compiled(bad)
    assert type(ours.value) is type(eager.value)
    assert str(ours.value) == str(eager.value)
