"""Attention that programs write out: what becomes a call of the library, and stays right."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional

import braze
from braze.options import GRAPH_PASSES
from braze.rewrite.fuse_attention import Worth, fuse_attention
from braze.trace import Journal
from tests.unit.rewrite.attention_checks import (
    BACKWARD,
    BATCH,
    HALVES,
    HEADS,
    KERNEL,
    LENGTH,
    WIDTH,
    calls,
    check,
    error_of,
    operands,
)
from tests.unit.rewrite.attention_programs import (
    FILLED,
    PLAIN,
    added,
    divided,
    filled,
    run_program,
)

module = sys.modules[fuse_attention.__module__]
pytestmark = pytest.mark.usefixtures("attention_pays")


# --- spellings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("program", PLAIN.values(), ids=PLAIN)
def test_inference(program: Any, dtype: torch.dtype, journal: Journal) -> None:
    check(program, operands(dtype))
    assert set(calls(journal)) == {KERNEL}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("program", PLAIN.values(), ids=PLAIN)
def test_training(program: Any, dtype: torch.dtype, journal: Journal) -> None:
    check(program, operands(dtype), trains=True)
    assert {*calls(journal)} == {KERNEL, BACKWARD}


def _whole_step(program: Any) -> Any:
    """The gradients are computed inside."""

    def step(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        result = program(*inputs)
        loss = (result.float() * torch.linspace(-1, 1, result.numel()).view(result.shape)).sum()
        return (result.detach(), *torch.autograd.grad(loss, inputs[:3]))

    return step


@pytest.mark.parametrize("program", [*PLAIN.values(), *FILLED.values()], ids=[*PLAIN, *FILLED])
def test_whole_steps(program: Any, journal: Journal) -> None:
    step = _whole_step(program)
    inputs = [x.requires_grad_() for x in operands()]
    inputs += [torch.rand(LENGTH, LENGTH) > 0.7] if program in FILLED.values() else []
    exact = step(*[x.detach().double().requires_grad_() for x in inputs[:3]], *inputs[3:])
    wanted, found = step(*inputs), braze.compile(step, dynamic=False)(*inputs)
    assert sorted(calls(journal)) == [KERNEL, BACKWARD]
    for ours, eager, reference in zip(found, wanted, exact, strict=True):
        assert ours.stride() == eager.stride()
        known = torch.ones_like(reference, dtype=torch.bool)
        assert error_of(ours, reference, known) <= 2 * error_of(eager, reference, known)


def test_layers_of_one_step(journal: Journal) -> None:
    """Several, that read each other's results and gradients, and share keys."""

    def program(q: Any, k: Any, v: Any) -> Any:
        return divided(divided(q, k, v) + q, k, divided(v, q, k))

    step = _whole_step(program)
    inputs = [x.requires_grad_() for x in operands()]
    for ours, eager in zip(braze.compile(step)(*inputs), step(*inputs), strict=True):
        torch.testing.assert_close(ours, eager)
    assert sorted(calls(journal)) == [KERNEL] * 3 + [BACKWARD] * 3


# --- what stays as it is --------------------------------------------------------------------------


def returned_weights(q: Any, k: Any, v: Any) -> Any:
    weights = torch.softmax(q @ k.mT * 0.25, -1)
    return weights @ v, weights


def returned_scores(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.mT
    return torch.softmax(scores, -1) @ v, scores


def dropped(q: Any, k: Any, v: Any) -> Any:
    return functional.dropout(torch.softmax(q @ k.mT * 0.25, -1), 0.5) @ v


def scaled_by_data(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.mT * q.flatten()[0].abs(), -1) @ v


def shifted_by_length(q: Any, k: Any, v: Any) -> Any:
    """A number that is computed, where sizes are symbols."""
    return torch.softmax(q @ k.mT + q.shape[-2] ** -0.5, -1) @ v


def scaled_below_zero(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.mT * -0.25, -1) @ v


def filled_nearby(q: Any, k: Any, v: Any) -> Any:
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    return torch.softmax((q @ k.mT).masked_fill(hidden, -1e4), -1) @ v


def over_columns(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.mT, -2) @ v


def of_values_first(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.mT, -1).mT @ v


def clamped(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax((q @ k.mT * 0.25).clamp(max=3), -1) @ v


def weighed(q: Any, k: Any, v: Any) -> Any:
    return (torch.softmax(q @ k.mT * 0.25, -1) * 0.5) @ v


def hidden_rows(q: Any, k: Any, v: Any) -> Any:
    hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(0)
    return filled(q, k, v, hidden)


REFUSED: dict[Any, str | None] = {
    returned_weights: "read elsewhere",
    returned_scores: "read elsewhere",
    dropped: "is between its probabilities and the product",
    scaled_by_data: "its scale is no positive number",
    scaled_below_zero: "its scale is no positive number",
    filled_nearby: "which scores may be",
    over_columns: "not over rows",
    of_values_first: "in another order",
    clamped: None,
    weighed: "aten.mul.Tensor is between",
    hidden_rows: "rows that attend to nothing",
}


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: program.__name__)
def test_what_is_left_alone(program: Any, said: Any, journal: Journal) -> None:
    inputs = operands()
    torch.manual_seed(3)
    wanted = program(*inputs)
    torch.manual_seed(3)
    found = braze.compile(program)(*inputs)
    torch.testing.assert_close(found, wanted, equal_nan=True)
    assert not calls(journal)
    reason = REFUSED[program]
    assert all(reason and reason in text for text in said()), said()
    assert bool(said()) is (reason is not None)


def in_float32_with_bias(q: Any, k: Any, v: Any, bias: Any) -> Any:
    return torch.softmax((q @ k.mT).float() + bias, -1).to(q.dtype) @ v


def test_what_kernels_do_not_take(said: Any, journal: Journal) -> None:
    with torch.no_grad():
        braze.compile(divided)(*(torch.randn(2, 2, 40, 16, dtype=torch.float64),) * 3)
        braze.compile(divided, dynamic=False)(*(torch.randn(2, 2, 0, 16),) * 3)
        full = torch.randn(BATCH, HEADS, LENGTH, LENGTH)
        braze.compile(added)(*operands(), full)
        braze.compile(in_float32_with_bias)(*operands(torch.bfloat16), full[:1, :1])
    assert not calls(journal)
    assert said() == [
        "not fused: its products are of another dtype",
        "not fused: its scores lie in another order",  # there are none
        "not fused: its mask is as large as its scores",
        "not fused: what is added to its scores has another dtype",
    ]


def test_deterministic_algorithms(journal: Journal) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        run_program(braze.compile(divided), operands(), trains=True)
    finally:
        torch.use_deterministic_algorithms(False)
    assert not calls(journal)


@pytest.mark.parametrize("options", [{"numerics": "eager"}, {"skip_passes": ("fuse_attention",)}])
def test_options_that_leave_it(options: dict[str, Any], journal: Journal) -> None:
    for trains in (False, True):
        run_program(braze.compile(divided, options=options), operands(), trains)
    assert not calls(journal) and "fuse_attention" in GRAPH_PASSES


def test_short_ones_do_not_pay(monkeypatch: pytest.MonkeyPatch, said: Any) -> None:
    worth = Worth(frozenset({torch.float32}), count=LENGTH, trained=LENGTH * LENGTH + 1)
    monkeypatch.setitem(module.WORTH, "cpu", worth)  # type: ignore[arg-type]
    run_program(braze.compile(divided), operands(), trains=False)
    assert said() == ["a call of the library"]
    run_program(braze.compile(divided), operands(), trains=True)
    assert said()[1] == f"not fused: {LENGTH} queries of {LENGTH} keys are too few"


def test_numbers_that_the_graph_computes(said: Any) -> None:
    inputs = operands()
    found = braze.compile(shifted_by_length, dynamic=True)(*inputs)
    torch.testing.assert_close(found, shifted_by_length(*inputs))
    assert said() == ["not fused: what is added to its scores is no float"]


def test_what_is_no_attention_is_no_near_miss(said: Any) -> None:
    def classifier(x: Any, w: Any) -> Any:
        return torch.softmax(x @ w, -1)

    def experts(x: Any, w: Any, v: Any) -> Any:
        return torch.softmax(x.tanh(), -1) @ v

    x = torch.randn(6, 8)
    braze.compile(classifier)(x, torch.randn(8, 8))
    braze.compile(experts)(x, torch.randn(8, 8), torch.randn(8, 8))
    assert not said()


# --- autograd beyond one backward -----------------------------------------------------------------


def test_second_derivatives(journal: Journal) -> None:
    """Kernels have none: those of the program."""

    given = operands()
    found = _second(braze.compile(divided), given)
    assert KERNEL in calls(journal)
    for ours, eager in zip(found, _second(divided, given), strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)


def _second(program: Any, given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    inputs = [x.detach().requires_grad_() for x in given]
    (first,) = torch.autograd.grad(program(*inputs).sin().sum(), inputs[:1], create_graph=True)
    return torch.autograd.grad(first.square().sum(), inputs)


def test_second_derivatives_in_the_frame(journal: Journal) -> None:
    def second(q: Any, k: Any, v: Any) -> Any:
        (first,) = torch.autograd.grad(divided(q, k, v).sin().sum(), q, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (q, k, v))

    inputs = [x.requires_grad_() for x in operands()]
    for ours, eager in zip(braze.compile(second)(*inputs), second(*inputs), strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)
    assert not calls(journal)


def test_gradients_of_gradients_behind_the_frame(journal: Journal) -> None:
    def penalty(q: Any, k: Any, v: Any) -> Any:
        (first,) = torch.autograd.grad(divided(q, k, v).sin().sum(), q, create_graph=True)
        return first.square().sum()

    inputs = [x.requires_grad_() for x in operands()]
    wanted = torch.autograd.grad(penalty(*inputs), inputs)
    found = torch.autograd.grad(braze.compile(penalty)(*inputs), inputs)
    for ours, eager in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)
    assert not calls(journal)


def test_a_step_that_returns_weights(journal: Journal) -> None:
    def step(q: Any, k: Any, v: Any) -> Any:
        weights = torch.softmax(q @ k.mT / 4, -1)
        found = torch.autograd.grad((weights @ v).sin().sum(), (q, k, v))
        return (weights.detach(), *found)

    inputs = [x.requires_grad_() for x in operands()]
    for ours, eager in zip(braze.compile(step)(*inputs), step(*inputs), strict=True):
        torch.testing.assert_close(ours, eager)
    assert not calls(journal)


def test_a_step_that_reads_the_gradient_of_weights(journal: Journal) -> None:
    """It is made of the result's gradient and the values: what kernels do not show."""

    def step(q: Any, k: Any, v: Any) -> Any:
        weights = torch.softmax(q @ k.mT / 4, -1)
        return torch.autograd.grad((weights @ v).sin().sum(), (q, k, v, weights))

    inputs = [x.requires_grad_() for x in operands()]
    for ours, eager in zip(braze.compile(step)(*inputs), step(*inputs), strict=True):
        torch.testing.assert_close(ours, eager)
    assert sorted(calls(journal)) == [KERNEL, BACKWARD]


def test_a_step_that_reads_the_gradient_of_scores(journal: Journal) -> None:
    def step(q: Any, k: Any, v: Any) -> Any:
        scores = q @ k.mT / 4
        return torch.autograd.grad((torch.softmax(scores, -1) @ v).sin().sum(), (q, k, v, scores))

    inputs = [x.requires_grad_() for x in operands()]
    for ours, eager in zip(braze.compile(step)(*inputs), step(*inputs), strict=True):
        torch.testing.assert_close(ours, eager)
    assert not calls(journal)


def test_a_batch_of_gradients() -> None:
    inputs = [x.requires_grad_() for x in operands()]
    batch = torch.randn(3, BATCH, HEADS, LENGTH, WIDTH)

    def batched(program: Any) -> Any:
        return torch.autograd.grad(program(*inputs), inputs, batch, is_grads_batched=True)

    for ours, eager in zip(batched(braze.compile(divided)), batched(divided), strict=True):
        torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)


def test_under_vmap_and_checkpoint(journal: Journal) -> None:
    def mapped(q: Any, k: Any, v: Any) -> Any:
        return torch.vmap(divided)(q, k, v)

    def saving(q: Any, k: Any, v: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(divided, q, k, v, use_reentrant=False)

    check(mapped, operands())
    check(saving, operands(), trains=True)
    assert {KERNEL, BACKWARD} <= {*calls(journal)}


def test_a_backward_twice() -> None:
    inputs = [x.requires_grad_() for x in operands()]
    result = braze.compile(divided)(*inputs)
    first = torch.autograd.grad(result.sum(), inputs, retain_graph=True)
    again = torch.autograd.grad(result.sum(), inputs)
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("wanted", [(0,), (1,), (0, 2), (1, 2)])
def test_gradients_of_some(wanted: tuple[int, ...], journal: Journal) -> None:
    def step(*inputs: torch.Tensor) -> Any:
        result = divided(*inputs).sin().sum()
        return torch.autograd.grad(result, [inputs[n] for n in wanted])

    inputs = [x.requires_grad_(n in wanted) for n, x in enumerate(operands())]
    for ours, eager in zip(braze.compile(step)(*inputs), step(*inputs), strict=True):
        torch.testing.assert_close(ours, eager)
    assert {*calls(journal)} == {KERNEL, BACKWARD}


def test_one_tensor_is_all_operands(journal: Journal) -> None:
    def step(x: torch.Tensor) -> Any:
        return torch.autograd.grad((torch.softmax(x @ x.mT / 4, -1) @ x).sin().sum(), x)

    x = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    torch.testing.assert_close(braze.compile(step)(x), step(x))
    x = torch.randn(2, HEADS, LENGTH, WIDTH, requires_grad=True)
    torch.testing.assert_close(braze.compile(step)(x), step(x))
    assert sorted(calls(journal)) == [KERNEL] * 2 + [BACKWARD] * 2


def test_one_value_is_query_and_values(said: Any) -> None:
    """Their gradients come as one."""

    def step(x: torch.Tensor) -> Any:
        weights = torch.softmax(torch.bmm(x, x.mT) / 4, -1)
        return torch.autograd.grad(torch.bmm(weights, x).sin().sum(), x)

    x = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    torch.testing.assert_close(braze.compile(step)(x), step(x))
    assert said() == ["not fused: its operands are one, and so is their gradient"]


# --- sizes that change ----------------------------------------------------------------------------


SIZES = ((2, 40), (3, 40), (5, 64), (4, 24))


@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("program", [divided, filled], ids=["plain", "masked"])
def test_symbolic_sizes(program: Any, trains: bool, journal: Journal) -> None:
    compiled = braze.compile(program)
    for batch, length in SIZES:
        inputs = [torch.randn(batch, HEADS, length, WIDTH) for _ in range(3)]
        hidden = torch.rand(length, length) > 0.7
        hidden[3] = True
        inputs += [hidden] if program is filled else []
        for ours, eager in zip(
            run_program(compiled, inputs, trains), run_program(program, inputs, trains)
        ):
            torch.testing.assert_close(ours, eager, equal_nan=True, atol=1e-5, rtol=1e-4)
    forwards = [record for record in journal.records() if record.outcome == "graph"]
    assert len(forwards) == 3 and all(KERNEL in record.extern_ops for record in forwards)


def test_second_derivatives_at_symbolic_sizes(journal: Journal) -> None:
    compiled = braze.compile(divided)
    for batch, length in SIZES:
        given = [torch.randn(batch, HEADS, length, WIDTH) for _ in range(3)]
        for ours, eager in zip(_second(compiled, given), _second(divided, given), strict=True):
            torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)
    assert KERNEL in calls(journal)


def test_sizes_that_the_kernel_asks_for(said: Any, journal: Journal) -> None:
    """Where the width of heads is a symbol, too, it would be guarded: nobody can any more."""
    run_program(braze.compile(filled, dynamic=True), [*operands(), torch.eye(LENGTH) > 0], False)
    assert said() == ["not fused: its kernel asks for sizes that are not known"]
    assert not calls(journal)
