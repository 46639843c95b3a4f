"""A compiled function beside the eager one, on a CUDA device."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.cache.sealed import read_entry
from braze.trace import Journal

NEEDS_DEVICE = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
RECORDING = "reduce-overhead"
MODES = (None, RECORDING)


def fallbacks(journal: Journal) -> list[str]:
    """What ran otherwise than compiled since the journal was cleared."""
    compiled = [reason for record in journal.records() for reason in record.fallbacks]
    return [*compiled, *journal.fallbacks()]


@contextmanager
def no_fallbacks(journal: Journal) -> Iterator[None]:
    """Everything inside runs as compiled."""
    journal.clear()
    yield
    assert not fallbacks(journal), fallbacks(journal)


def check(
    function: Callable[..., Any],
    inputs: Sequence[Sequence[Any]],
    mode: str | None = None,
    **options: Any,
) -> None:
    """Calls with each of the inputs, beside eager: values, strides, dtypes, devices."""
    compiled = braze.compile(function, mode=mode, **options)
    for args in inputs:
        mine = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        theirs = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
        right, found = function(*theirs), compiled(*mine)
        for a, b in zip(_flat([found, mine]), _flat([right, theirs]), strict=True):
            assert (a.stride(), a.device) == (b.stride(), b.device)
            torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-4, equal_nan=True)


def kept_choices(cache: Path) -> dict[str, Any]:
    """Entry -> the choice that tuning kept there, of a cache's folder."""
    folder = os.open(cache / "tuning", os.O_RDONLY | os.O_DIRECTORY)
    try:
        entries = {name: read_entry(folder, "tuning", name) for name in os.listdir(folder)}
    finally:
        os.close(folder)
    assert all(isinstance(entry, bytes) for entry in entries.values()), entries
    return {name: json.loads(entry) for name, entry in entries.items()}  # type: ignore[arg-type]


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in _flat(item)]
    return []


def train_both(
    model: nn.Module, inputs: Callable[[int], torch.Tensor], steps: int, mode: str | None
) -> None:
    """Steps of SGD on the compiled model and on a copy: losses, gradients and parameters agree."""
    other = copy.deepcopy(model)
    compiled = braze.compile(model, mode=mode)
    mine = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    theirs = torch.optim.SGD(other.parameters(), lr=0.05, momentum=0.9)
    for number in range(steps):
        x, losses = inputs(number), []
        for call, optimizer in ((compiled, mine), (other, theirs)):
            torch.manual_seed(number)
            optimizer.zero_grad()
            loss = call(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-5)
    for p, q in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(p, q, rtol=5e-3, atol=1e-4)
