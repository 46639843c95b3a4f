"""Attention that programs write out, under masks: rows that attend to nothing, and gradients."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
import torch

import braze
from braze.ir.graphs.graph import Node
from braze.rewrite.fuse_attention import Worth, fuse_attention, gradients_may_be_nan
from braze.shapes.expr import Symbol, as_expr
from braze.trace import Journal
from tests.unit.rewrite.attention_checks import (
    BACKWARD,
    BATCH,
    HALVES,
    HEADS,
    KERNEL,
    LENGTH,
    calls,
    check,
    operands,
)
from tests.unit.rewrite.attention_programs import (
    ADDED,
    FILLED,
    PLAIN,
    added,
    divided,
    filled,
    least_added,
    run_program,
)

module = sys.modules[fuse_attention.__module__]
pytestmark = pytest.mark.usefixtures("attention_pays")


MASKS = {
    "rows by columns": (LENGTH, LENGTH),
    "keys of a batch": (BATCH, 1, 1, LENGTH),
    "each of a batch": (BATCH, 1, LENGTH, LENGTH),
    "heads": (HEADS, 1, LENGTH),
}


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("program", FILLED.values(), ids=FILLED)
def test_rows_that_attend_to_nothing(
    program: Any, shape: tuple[int, ...], trains: bool, journal: Journal
) -> None:
    hidden = torch.rand(shape) > 0.7
    check(program, [*operands(), hidden], trains)
    hidden[..., -1, :] = True
    check(program, [*operands(), hidden], trains)
    hidden[0] = True
    check(program, [*operands(), hidden], trains)
    assert {*calls(journal)} == ({KERNEL, BACKWARD} if trains else {KERNEL})


ROWS = {
    "finite": 3.0,
    "none": -torch.inf,
    "far": torch.finfo(torch.float32).min,
    "half as far": torch.finfo(torch.float32).min / 2,
    "not a number": torch.nan,
}


@pytest.mark.parametrize("amount", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("program", ADDED.values(), ids=ADDED)
def test_rows_of_masks_that_are_added(program: Any, amount: float, journal: Journal) -> None:
    bias = torch.randn(BATCH, 1, LENGTH, LENGTH)
    amount = -amount if program.__name__ == "subtracted" else amount
    bias[:, :, 3] = bias[:, :, -1, 1:] = bias[:, :, 5, ::2] = amount
    check(program, [*operands(), bias])
    assert {*calls(journal)} == {KERNEL}


def test_far_rows_of_several_depths() -> None:
    """Of two numbers that leave nothing of scores, the larger one wins."""
    bias = torch.full((LENGTH, LENGTH), -1e35)
    bias[:, ::3] = -3e38
    bias[4] = -torch.inf
    bias[5, 7:] = -torch.inf
    check(added, [*operands(), bias])


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_masks_of_halves(dtype: torch.dtype) -> None:
    least = torch.finfo(dtype).min
    hidden = torch.rand(LENGTH, LENGTH) > 0.6
    hidden[3] = True
    bias = torch.zeros(LENGTH, LENGTH, dtype=dtype).masked_fill(hidden, least)
    bias[3] = 0 if dtype is torch.float16 else least  # eager's rounding decides, and is no rule
    check(added, [*operands(dtype), bias])
    check(filled, [*operands(dtype), hidden], trains=True)


@pytest.mark.parametrize("name", ["causal", "causal_by_numbers"])
def test_causal_masks_are_known(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "braze.aot_graphs"), torch.no_grad():
        braze.compile(PLAIN[name])(*operands())
    (call,) = [line for line in caplog.text.splitlines() if KERNEL in line]
    assert "0.0, True" in call and "attn_mask" not in call


def test_a_mask_that_hides_nothing_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    def program(q: Any, k: Any, v: Any) -> Any:
        hidden = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
        return filled(q, k, v, hidden)

    with caplog.at_level(logging.INFO, "braze.aot_graphs"), torch.no_grad():
        braze.compile(program)(*operands())
    (call,) = [line for line in caplog.text.splitlines() if KERNEL in line]
    assert "attn_mask" not in call and "True" not in call.partition("#")[0]


def test_a_mask_that_gradients_flow_through(said: Any, journal: Journal) -> None:
    bias = torch.randn(1, 1, LENGTH, LENGTH, requires_grad=True)
    inputs = [x.requires_grad_() for x in operands()]
    wanted = torch.autograd.grad(added(*inputs, bias).sum(), [*inputs, bias])
    found = torch.autograd.grad(braze.compile(added)(*inputs, bias).sum(), [*inputs, bias])
    for ours, eager in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)
    assert not calls(journal) and said()


@pytest.mark.parametrize(("masked", "flowing"), [(1, 0), (0, 1)])
def test_short_ones_under_masks_do_not_pay(
    masked: int, flowing: int, monkeypatch: pytest.MonkeyPatch, said: Any
) -> None:
    worth = Worth(
        dtypes=frozenset({torch.float32}),
        count=1,
        trained=1,
        masked=LENGTH * LENGTH + masked,
        flowing=LENGTH * LENGTH + flowing,
    )
    monkeypatch.setitem(module.WORTH, "cpu", worth)  # type: ignore[arg-type]
    inputs = [*operands(), torch.rand(LENGTH, LENGTH) > 0.7]
    for program in (filled, least_added):
        run_program(braze.compile(program), inputs, trains=True)
    few = "not fused: queries and keys are too few for gradients under its mask"
    assert said()[0] == (few if masked else "a call of the library") and few in said()[1:]
    run_program(braze.compile(divided), operands(), trains=True)
    assert said()[-1] == "a call of the library"


def _choosing(least: float, nothing: float) -> Any:
    def added_by_choice(q: Any, k: Any, v: Any, hidden: Any) -> Any:
        mask = torch.where(hidden, torch.tensor(least, dtype=q.dtype), nothing)
        return torch.softmax(q @ k.mT * 0.25 + mask, -1) @ v

    return added_by_choice


@pytest.mark.parametrize(
    ("least", "nothing", "dtype"),
    [
        (-torch.inf, 0.0, torch.float32),  # gradients of rows that are all hidden are NaN
        (torch.finfo(torch.float32).min, 1.0, torch.float32),
        (-1e4, 0.0, torch.float32),
        (torch.finfo(torch.float16).min, 0.0, torch.float16),  # beside which scores count
    ],
)
def test_what_is_added_otherwise_stays_with_gradients(
    least: float,
    nothing: float,
    dtype: torch.dtype,
    said: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(module.WORTH, "cpu", Worth(frozenset({dtype}), count=1, trained=1))  # type: ignore[arg-type]
    program = _choosing(least, nothing)
    hidden = torch.rand(LENGTH, LENGTH) > 0.7
    hidden[3] = True
    check(program, [*operands(dtype), hidden])
    check(program, [*operands(dtype), hidden], trains=True)
    assert said()[0] == "a call of the library"
    assert "not fused: a mask that is added depends on inputs, and gradients flow" in said()


@pytest.mark.parametrize("kernel", ["cudnn", "efficient"])
def test_gradients_that_may_be_nan(kernel: str) -> None:
    """cuDNN's, of 64 keys beyond a multiple of 128 and of unknown ones."""
    op = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention").default
    call = Node(op, (), (), ())
    counts = (64, 128, 136, 192, 256, as_expr(Symbol("s0", 2, None)))
    found = [gradients_may_be_nan([call], count) for count in counts]
    wanted = [True, False, False, True, False, True]
    assert found == (wanted if kernel == "cudnn" else [False] * 6)
