"""A program that writes attention out, compiled and beside eager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

import braze
from braze.trace import Journal
from tests.unit.rewrite.attention_programs import run_program

KERNEL = "aten._scaled_dot_product_flash_attention_for_cpu.default"
BACKWARD = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
HALVES = (torch.bfloat16, torch.float16)
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 40, 16


def operands(dtype: torch.dtype = torch.float32, count: int = LENGTH) -> list[torch.Tensor]:
    sizes = (LENGTH, count, count)
    return [torch.randn(BATCH, n, HEADS, WIDTH, dtype=dtype).transpose(1, 2) for n in sizes]


def check(
    program: Any,
    inputs: Sequence[torch.Tensor],
    trains: bool = False,
    options: dict[str, Any] | None = None,
) -> None:
    """Same strides, dtypes and NaN as eager, and at most twice its error."""
    compiled = braze.compile(program, dynamic=False, options=options)
    wanted = run_program(program, inputs, trains)
    exact = run_program(program, inputs, trains, torch.float64)
    for ours, eager, reference in zip(
        run_program(compiled, inputs, trains), wanted, exact, strict=True
    ):
        assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
        assert torch.equal(ours.isnan(), eager.isnan())
        known = ~(eager.isnan() | reference.isnan())
        error, allowed = (error_of(x, reference, known) for x in (ours, eager))
        assert error <= 2 * allowed + 1e-9, (error, allowed)
    assert (
        run_program(compiled, inputs, False)[0].stride()
        == run_program(program, inputs, False)[0].stride()
    )


def error_of(x: torch.Tensor, reference: torch.Tensor, known: torch.Tensor) -> float:
    return float(
        (x.detach().double() - reference.detach())[known].square().mean().sqrt().nan_to_num()
    )


def calls(journal: Journal) -> list[str]:
    """The calls of attention; nothing ran otherwise than compiled."""
    assert not [reason for record in journal.records() for reason in record.fallbacks]
    assert not journal.fallbacks()
    return [op for record in journal.records() for op in record.extern_ops if "attention" in op]
