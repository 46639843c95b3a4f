"""What kernels are asked about their arguments, and how often."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import braze
from braze.tracing import kernel_checks

_CALLS: dict[str, Any] = {
    "add": lambda x, n: x + n,
    "radd": lambda x, n: n - x,
    "pow": lambda x, n: x**n,
    "compare": lambda x, n: x > n,
    "where": lambda x, n: torch.where(x > 0, x, n),
    "clamp": lambda x, n: x.clamp(n, n + 1),
    "in_place": lambda x, n: x.clone().mul_(n),
    "fill": lambda x, n: x.masked_fill(x > 0, n),
}


@pytest.mark.parametrize("name", _CALLS)
def test_numbers_are_asked_about_by_kind(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of a loop are operands: as many questions as there are widths, not as numbers."""
    asked: list[Any] = []
    check = kernel_checks._check

    @functools.wraps(check)
    def counted(*arguments: Any) -> bool:
        asked.append(arguments[0].op)
        return check(*arguments)

    monkeypatch.setattr(kernel_checks, "_check", counted)
    call = _CALLS[name]

    def program(x: torch.Tensor, turns: int) -> list[torch.Tensor]:
        return [call(x, turn) for turn in range(2, turns)]

    x = torch.arange(3.0)[None, :, None, None, None]  # a rank that nothing else here has
    made = braze.compile(program, backend="aot_eager", fullgraph=True)(x, 60)
    assert all(map(torch.equal, made, program(x, 60)))
    most = max(asked.count(op) for op in asked) if asked else 0
    assert most <= 4


def test_dimensions_are_asked_about_one_by_one() -> None:
    x = torch.ones(2, 3)

    def program(x: torch.Tensor, dim: int) -> torch.Tensor:
        return x.sort(dim).values

    assert braze.compile(program)(x, 1).shape == (2, 3)
    with pytest.raises(IndexError):
        braze.compile(program)(x, 2)
