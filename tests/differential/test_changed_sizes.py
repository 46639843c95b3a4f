"""Operators called again at other sizes: those that were wrong, and a part of all others."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.errors import BrazeWarning
from braze.ir.types import TensorType
from braze.trace import Journal
from braze.tracing.shape_rules.registry import RULES
from braze.tracing.shape_rules.strides import contiguous
from tests.differential.changed_sizes import in_child, without_kernels
from tests.differential.op_sweep import operators

PARTS = 14
SAMPLES = int(os.environ.get("BRAZE_SIZE_SAMPLES", "1"))
CHANGED = os.environ.get("BRAZE_SIZE_SAMPLES") is not None

# Sizes that had to be equal were not guarded; errors of eager were lost.
ONCE_WRONG = (
    "clamp expand_copy heaviside index_add index_put max.reduction_with_dim "
    "native_dropout_backward nn.functional.soft_margin_loss ormqr take"
)


@pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "default"])
def test_operators_that_were_wrong(dynamic: bool | None) -> None:
    wrong = []
    with without_kernels():
        for name in ONCE_WRONG.split():
            wrong += in_child(operators()[name], SAMPLES, dynamic, False).failures
    assert not wrong


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "gradients"])
def test_a_part_of_all_operators(gradients: bool) -> None:
    names = list(operators()) if CHANGED else list(operators())[gradients :: 2 * PARTS]
    wrong: list[str] = []
    calls = 0
    with without_kernels():
        for name in names:
            outcome = in_child(operators()[name], SAMPLES, True, gradients)
            calls += outcome.calls
            wrong += [f"{name}: {failure}" for failure in outcome.failures]
    assert not wrong
    assert calls > 5 * len(names)


def _like(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape) for shape in shapes]


BY_CHANCE: dict[str, tuple[Callable[..., Any], list[list[torch.Tensor]]]] = {
    "clamp": (
        lambda x, low: x.clamp(min=low),
        [_like((2, 8), (8,)), _like((5, 5), (5,)), _like((3, 6), (6,))],
    ),
    "ldexp": (
        torch.ldexp,
        [_like((4,), (4, 4)), _like((5,), (5, 5)), _like((5,), (3, 5))],
    ),
    "addr": (
        torch.addr,
        [_like((4, 4), (4,), (4,)), _like((5, 5), (5,), (5,)), _like((3, 5), (3,), (5,))],
    ),
    "searchsorted": (
        torch.searchsorted,
        [_like((3, 5), (3, 7)), _like((4, 6), (4, 6)), _like((5, 6), (5, 9))],
    ),
}


@pytest.mark.parametrize("name", list(BY_CHANCE))
@pytest.mark.parametrize("dynamic", [True, None], ids=["dynamic", "default"])
def test_sizes_equal_by_chance(name: str, dynamic: bool | None, journal: Journal) -> None:
    function, calls = BY_CHANCE[name]
    with without_kernels():
        compiled = braze.compile(function, dynamic=dynamic)
        for inputs in calls:
            inputs = [inputs[0].sort(-1).values, *inputs[1:]]
            torch.testing.assert_close(compiled(*inputs), function(*inputs))
    assert 1 <= len(journal.records()) <= len(calls)
    assert not any(record.fallbacks for record in journal.records())


def _solution_of_a_square(values: TensorType, factor: TensorType, upper: bool = False) -> Any:
    """A wrong shape rule, as one that was fitted to sizes that were equal by chance."""
    size = values.shape[0]
    return contiguous(values.dtype, (size, size), values.device)  # type: ignore[arg-type]


def test_wrong_shape_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call runs eagerly, which is counted, and said once."""
    monkeypatch.setitem(RULES, torch.ops.aten.cholesky_solve.default, _solution_of_a_square)
    compiled = braze.compile(lambda b, a: torch.cholesky_solve(b, a) + 1, dynamic=True)
    square, wide = torch.randn(4, 4), torch.randn(5, 7)
    torch.testing.assert_close(compiled(square, torch.eye(4)), square + 1)
    with pytest.warns(BrazeWarning, match="cholesky_solve.default gave another shape"):
        result = compiled(wide, torch.eye(5))
    torch.testing.assert_close(result, wide + 1)
