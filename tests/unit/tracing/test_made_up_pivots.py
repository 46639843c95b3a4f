"""Kernels that write where pivots say are never run on pivots that were made up."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze.tracing import kernel_checks

MATRIX = torch.randn(3, 3, generator=torch.Generator().manual_seed(0))
SYMMETRIC = MATRIX + MATRIX.mT


def _unpacked(x: torch.Tensor) -> Any:
    return torch.lu_unpack(*torch.linalg.lu_factor(x))


def _solved(x: torch.Tensor) -> Any:
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(x), x)


def _symmetric(x: torch.Tensor) -> Any:
    return torch.linalg.ldl_solve(*torch.linalg.ldl_factor(x), x)


@pytest.mark.parametrize("program", [_unpacked, _solved, _symmetric])
def test_kernels_that_trust_pivots_run_on_real_ones(
    program: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    refused = kernel_checks._raised

    def noted(op: Any, *rest: Any) -> Exception | None:
        asked.append(op)
        return refused(op, *rest)

    monkeypatch.setattr(kernel_checks, "_raised", noted)
    kernel_checks._refusal.cache_clear()
    compiled = braze.compile(program, backend="aot_eager")
    torch.testing.assert_close(compiled(SYMMETRIC), program(SYMMETRIC))
    names = [argument.name for op in asked for argument in op._schema.arguments]
    assert not [name for name in names if "pivots" in name]
