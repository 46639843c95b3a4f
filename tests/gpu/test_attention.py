"""Attention that programs write out, on a device: which kernels, and that results stay right."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import braze
from braze.rewrite.fuse_attention import Worth, fuse_attention
from braze.trace import Journal
from tests.gpu.checks import MODES, NEEDS_DEVICE, no_fallbacks
from tests.unit.rewrite.attention_checks import HALVES, error_of
from tests.unit.rewrite.attention_programs import (
    ADDED,
    FILLED,
    PLAIN,
    added,
    causal,
    divided,
    filled,
    run_program,
)

pytestmark = NEEDS_DEVICE
BATCH, HEADS, LENGTH, WIDTH = 2, 4, 136, 64


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    always = Worth(frozenset(HALVES), count=1, trained=1)
    monkeypatch.setitem(sys.modules[fuse_attention.__module__].WORTH, "cuda", always)


def _operands(
    dtype: torch.dtype = torch.bfloat16, width: int = WIDTH, length: int = LENGTH
) -> list[torch.Tensor]:
    shape = (BATCH, length, HEADS, width)
    made = [torch.randn(shape, dtype=dtype, device="cuda") for _ in range(3)]
    return [x.transpose(1, 2) for x in made]


def _check(
    program: Any, inputs: Sequence[torch.Tensor], trains: bool, mode: str | None = None
) -> None:
    """As eager in strides, dtypes and NaN, at most with twice its error; each of several calls."""
    compiled = braze.compile(program, dynamic=False, mode=mode)
    wanted = run_program(program, inputs, trains)
    exact = run_program(program, inputs, trains, torch.float64)
    for _ in range(3):
        found = run_program(compiled, inputs, trains)
        for ours, eager, reference in zip(found, wanted, exact, strict=True):
            assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
            assert torch.equal(ours.isnan(), eager.isnan())
            known = ~(eager.isnan() | reference.isnan())
            error, allowed = (error_of(x, reference, known) for x in (ours, eager))
            assert error <= 2 * allowed + 1e-9, (error, allowed)
    assert found[0].stride() == wanted[0].stride()


def _calls(journal: Journal) -> set[str]:
    return {op for record in journal.records() for op in record.extern_ops if "attention" in op}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", PLAIN.values(), ids=PLAIN)
def test_spellings(program: Any, trains: bool, mode: str | None, journal: Journal) -> None:
    with no_fallbacks(journal):
        _check(program, _operands(), trains, mode)
    assert len(_calls(journal)) == (2 if trains else 1)


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("width", [36, 64, 72, 128, 256])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_widths_of_heads(dtype: torch.dtype, width: int, trains: bool, journal: Journal) -> None:
    with no_fallbacks(journal):
        _check(causal, _operands(dtype, width), trains)
    assert _calls(journal)


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", ["nothing", "causal", "booleans"])
def test_the_kernel_is_eagers_choice(name: str, trains: bool, journal: Journal) -> None:
    """The one that a program has which calls attention by its name."""
    hidden = torch.rand(LENGTH, LENGTH, device="cuda") > 0.5

    def called(q: Any, k: Any, v: Any) -> Any:
        mask = ~hidden if name == "booleans" else None
        return scaled_dot_product_attention(q, k, v, mask, is_causal=name == "causal")

    def masked(q: Any, k: Any, v: Any) -> Any:
        return filled(q, k, v, hidden)

    written = {"nothing": divided, "causal": causal, "booleans": masked}[name]
    run_program(braze.compile(called), _operands(), trains)
    wanted = _calls(journal)
    journal.clear()
    run_program(braze.compile(written), _operands(), trains)
    assert wanted and _calls(journal) == wanted


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "masked"])
def test_gradients_that_come_in_any_layout(masked: bool, mode: str | None) -> None:
    """Eager's would be wrong behind each other: by the plan that was made for the first."""
    hidden = torch.rand(72, 72, device="cuda") > 0.7

    def called(q: Any, k: Any, v: Any) -> Any:
        mask = ~hidden if masked else None
        return scaled_dot_product_attention(q, k, v, mask, is_causal=not masked)

    def gradients(program: Any, tangent: torch.Tensor, dtype: torch.dtype) -> Any:
        inputs = [x.detach().to(dtype).requires_grad_() for x in given]
        return torch.autograd.grad(program(*inputs), inputs, tangent.to(dtype))

    given = _operands(length=72)
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        compiled = braze.compile(called, dynamic=False, mode=mode)
        rows = torch.randn(BATCH, HEADS, 72, WIDTH, device="cuda").bfloat16()
        layouts = [rows, rows.transpose(1, 2).contiguous().transpose(1, 2), rows.mT.contiguous().mT]
        gradients(called, layouts[0], torch.bfloat16)
        for tangent in [*layouts, *layouts]:
            found = gradients(compiled, tangent, torch.bfloat16)
            with sdpa_kernel(SDPBackend.MATH):
                exact = gradients(called, tangent, torch.float64)
            for ours, reference in zip(found, exact, strict=True):
                assert (
                    error_of(ours, reference, torch.ones_like(reference, dtype=torch.bool)) < 0.01
                )


def test_gradients_of_rows_with_low_scores() -> None:
    """Of 64 keys beyond a multiple of 128, under a mask: cuDNN's would be NaN."""
    q, k, v = _operands(length=192)
    hidden = torch.zeros(192, 192, dtype=torch.bool, device="cuda")
    q, k = 30 + q.abs(), -30 - k.abs()
    _check(filled, [q, k, v, hidden], trains=True)


MASKS = {
    "rows by columns": (LENGTH, LENGTH),
    "keys of a batch": (BATCH, 1, 1, LENGTH),
    "each of a batch": (BATCH, 1, LENGTH, LENGTH),
}


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("program", FILLED.values(), ids=FILLED)
def test_rows_that_attend_to_nothing(
    program: Any, shape: tuple[int, ...], trains: bool, journal: Journal
) -> None:
    hidden = torch.rand(shape, device="cuda") > 0.7
    with no_fallbacks(journal):
        _check(program, [*_operands(), hidden], trains)
        hidden[..., -1, :] = True
        _check(program, [*_operands(), hidden], trains)
    assert len(_calls(journal)) == (2 if trains else 1)


@pytest.mark.parametrize("amount", [3.0, -torch.inf, torch.finfo(torch.bfloat16).min])
@pytest.mark.parametrize("program", ADDED.values(), ids=ADDED)
def test_rows_of_masks_that_are_added(program: Any, amount: float, journal: Journal) -> None:
    bias = torch.randn(BATCH, 1, LENGTH, LENGTH, device="cuda").bfloat16()
    amount = -amount if program.__name__ == "subtracted" else amount
    bias[:, :, 3] = bias[:, :, -1, 1:] = bias[:, :, 5, ::2] = amount
    with no_fallbacks(journal):
        _check(program, [*_operands(), bias], trains=False)
    assert len(_calls(journal)) == 1


@pytest.mark.parametrize("length", [17, 63, 130])
def test_odd_lengths(length: int, journal: Journal) -> None:
    """Masks whose rows begin anywhere are padded for the kernel."""
    hidden = torch.rand(length, length, device="cuda") > 0.7
    for trains in (False, True):
        _check(filled, [*_operands(length=length), hidden], trains)
    _check(added, [*_operands(length=length), hidden.bfloat16()], trains=False)
    assert _calls(journal)


@pytest.mark.parametrize("program", [divided, causal, *FILLED.values()])
def test_whole_steps(program: Any, journal: Journal) -> None:
    def step(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = program(*inputs)
        loss = result.float().sin().sum()
        return (result.detach(), *torch.autograd.grad(loss, inputs[:3]))

    inputs = [x.requires_grad_() for x in _operands()]
    if program in FILLED.values():
        inputs.append(torch.rand(LENGTH, LENGTH, device="cuda") > 0.7)
    exact = step(*[x.detach().double().requires_grad_() for x in inputs[:3]], *inputs[3:])
    with no_fallbacks(journal):
        wanted, found = step(*inputs), braze.compile(step)(*inputs)
    assert len(_calls(journal)) == 2
    for ours, eager, reference in zip(found, wanted, exact, strict=True):
        assert ours.stride() == eager.stride()
        known = torch.ones_like(reference, dtype=torch.bool)
        assert error_of(ours, reference, known) <= 2 * error_of(eager, reference, known)


def test_float32_stays(journal: Journal) -> None:
    """Its products have all digits."""
    with no_fallbacks(journal):
        _check(divided, _operands(torch.float32), trains=False)
    assert not _calls(journal)


def test_second_derivatives(journal: Journal) -> None:
    def second(program: Any) -> Sequence[torch.Tensor]:
        inputs = [x.detach().requires_grad_() for x in given]
        (first,) = torch.autograd.grad(program(*inputs).sum(), inputs[:1], create_graph=True)
        return torch.autograd.grad(first.float().square().sum(), inputs)

    given = _operands()
    for ours, eager in zip(second(braze.compile(divided)), second(divided), strict=True):
        torch.testing.assert_close(ours, eager, rtol=5e-2, atol=5e-2)
    assert _calls(journal)


def test_sizes_that_change(journal: Journal) -> None:
    compiled = braze.compile(causal)
    for length in (128, 192, 256, 100):
        for trains in (False, True):
            inputs = _operands(length=length)
            wanted = run_program(causal, inputs, trains)
            for ours, eager in zip(run_program(compiled, inputs, trains), wanted, strict=True):
                torch.testing.assert_close(ours, eager, rtol=5e-2, atol=5e-2)
    assert _calls(journal)
