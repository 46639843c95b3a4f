"""`torch.cond` with predicates of every kind, and the operator under it; numbers of lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze
from braze.errors import GraphBreakError

DTYPES = (torch.bool, torch.int8, torch.uint8, torch.int64, torch.float16, torch.float64)
NUMBERS = (0, 1, 2, -0.0, float("nan"), 0.25)


def chosen(predicate: Any, x: torch.Tensor) -> Any:
    return torch.cond(predicate, lambda x: (x + 1, x.sum()), lambda x: (x - 1, x.prod()), (x,))


def chosen_by_operator(predicate: Any, x: torch.Tensor) -> Any:
    operator = torch.ops.higher_order.cond
    return operator(predicate, lambda x: (x + 1, x.sum()), lambda x: (x - 1, x.prod()), (x,))


@pytest.mark.parametrize("program", [chosen, chosen_by_operator])
@pytest.mark.parametrize("dtype", DTYPES)
def test_predicates_of_each_dtype(program: Any, dtype: torch.dtype) -> None:
    compiled = braze.compile(program, backend="eager", fullgraph=True)
    x = torch.tensor([2.0, 3.0])
    for number in NUMBERS:
        if not dtype.is_floating_point and number != number:
            continue
        for predicate in (torch.tensor(number).to(dtype), torch.tensor([number]).to(dtype)):
            given = (x + 1, x.sum()) if predicate else (x - 1, x.prod())
            torch.testing.assert_close(compiled(predicate, x), given)


def test_branches_that_take_nothing() -> None:
    def program(predicate: torch.Tensor, x: torch.Tensor) -> Any:
        return torch.cond(predicate, lambda: x + 1, lambda: x - 1)

    compiled = braze.compile(program, backend="aot_eager", fullgraph=True)
    for number in (0.0, 1.0):
        assert compiled(torch.tensor([number]), torch.ones(1)).item() == 2 * number


@pytest.mark.parametrize("scalars", [False, True])
def test_truth_of_a_number_breaks(scalars: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x else x + 2

    with braze.config.patch(capture_scalar_outputs=scalars):
        compiled = braze.compile(program, backend="eager")
        assert [compiled(torch.tensor(n)).item() for n in (3, 0)] == [4, 2]
        with pytest.raises(GraphBreakError):
            braze.compile(program, backend="eager", fullgraph=True)(torch.tensor(3))


# --- lists of numbers ----------------------------------------------------------------------------

_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (0,), (2, 0), (1, 2, 2)])
@pytest.mark.parametrize("dtype", _INTEGERS)
def test_lists_of_integers_are_one_graph(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    def program(x: torch.Tensor) -> Any:
        held = x.tolist()
        first = held if isinstance(held, int) else len(held)
        return held, x + 1, first * 2

    compiled = braze.compile(program, backend="eager", fullgraph=True)
    for start in (0, 5):
        x = (torch.arange(12)[: torch.Size(shape).numel()].reshape(shape) + start).to(dtype)
        (ours, *rest), (eager, *others) = compiled(x), program(x)
        assert ours == eager and type(ours) is type(eager)
        torch.testing.assert_close(rest, others)


def test_long_lists_and_floats_break() -> None:
    def program(x: torch.Tensor) -> Any:
        return x.tolist()

    for x in (torch.arange(1025), torch.ones(2)):
        assert braze.compile(program, backend="eager")(x) == x.tolist()
        with pytest.raises(GraphBreakError):
            braze.compile(program, backend="eager", fullgraph=True)(x)
