"""A rate that float32 does not hold: eager raises in the step, compiled steps gave infinities."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from tests.unit.capture.test_whole_step import compiles_of

RATES = (1e-3, 1e-2, 1e51, 300.0, 1e-3, 1e51)


def trained(kind: Any, dtype: torch.dtype, compile: Callable[[Any], Any], **options: Any) -> str:
    """What each step left or raised, in four digits."""
    weights = [torch.nn.Parameter(torch.tensor(values, dtype=dtype)) for values in ([1, 2], [3])]
    optimizer = kind(weights, lr=1e-3, **options)

    @compile
    def step() -> None:
        sum((w * w).sum() for w in weights).backward()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()

    seen: list[Any] = []
    for rate in RATES:
        optimizer.param_groups[0]["lr"] = rate
        try:
            step()
        except RuntimeError as error:
            seen.append(str(error))
        seen.append([(w.tolist(), w._version, w.grad is None) for w in weights])
        for state in optimizer.state.values():
            seen.append([x.tolist() if type(x) is torch.Tensor else x for x in state.values()])
    return re.sub(r"\d+\.\d+(e[-+]\d+)?", lambda m: f"{float(m.group()):.4g}", str(seen))


@pytest.mark.parametrize("options", [{"foreach": False}, {"foreach": True}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "NAdam", "Adagrad"])
def test_what_eager_refuses_is_refused(
    name: str, dtype: torch.dtype, options: dict[str, Any]
) -> None:
    kind = getattr(torch.optim, name)
    expected = trained(kind, dtype, lambda step: step, **options)
    refused = "without overflow" in expected
    assert refused or dtype is torch.float64 or (name, options) == ("Adagrad", {"foreach": True})
    assert trained(kind, dtype, braze.compile, **options) == expected


def test_a_schedule_of_moderate_rates_does_not_recompile() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.Adam([weight], lr=1e-3)

    def step() -> None:
        (weight * weight).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    compiled = braze.compile(step)
    for rate in (1e-3, 1e-3, 0.1, 1e-5, 1.0, 200.0):
        optimizer.param_groups[0]["lr"] = rate
        compiled()
    assert compiles_of(compiled) == 2  # one step makes the optimizer's state, the others meet it
