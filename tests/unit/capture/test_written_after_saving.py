"""What autograd saved and the program then writes to: never wrong gradients in silence.

Where eager's backward goes through, the compiled one gives its gradients. Where eager's raises, the
compiled one does, or gives those of what was saved, as eager would with copies of it (a graph saves
values, not memory). In one graph, and with a break anywhere.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import braze
from tests.shares import todays

Write = Callable[[Tensor], Any]


class SavesResult(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradient * y * 2


class SavesInput(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient * x * 3


# Each gives what is computed on, and what is written to.


def result(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y, y


def operand(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 1
    return y.sin(), y


def both(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sigmoid()
    return y * y, y


def view_of_result(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.tanh()
    return y, y[1:]


def base_of_view(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    return y.t().sin(), y


def other_piece(x: Tensor) -> tuple[Tensor, Tensor]:
    """One counter for all views: eager raises although other elements are written."""
    y = x + 1
    return y[0].sin(), y[1:]


def detached(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.exp()
    return y, y.detach()


def data(x: Tensor) -> tuple[Tensor, Tensor]:
    """Eager does not notice."""
    y = x.exp()
    return y, y.data


def not_saved(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    return y * 2, y


def other_result(x: Tensor) -> tuple[Tensor, Tensor]:
    """Saved for gradients that nobody asks for."""
    return x.relu(), x.exp()


def result_of_function(x: Tensor) -> tuple[Tensor, Tensor]:
    y = SavesResult.apply(x)
    return y * 2, y


def input_of_function(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x + 1
    return SavesInput.apply(y), y


SAVED = (
    result,
    operand,
    both,
    view_of_result,
    base_of_view,
    other_piece,
    detached,
    data,
    not_saved,
    other_result,
    result_of_function,
    input_of_function,
)


def put(y: Tensor) -> None:
    y[0] = 0.5


def without_gradients(y: Tensor) -> None:
    with torch.no_grad():
        y.mul_(2)


WRITES: dict[str, Write] = {
    "add_": lambda y: y.add_(1),
    "mul_": lambda y: y.mul_(2),
    "zero_": lambda y: y.zero_(),
    "copy_": lambda y: y.copy_(torch.ones(y.shape)),
    "clamp_": lambda y: y.clamp_(0, 1),
    "exp_": lambda y: y.exp_(),
    "masked_fill_": lambda y: y.masked_fill_(y > 0, 0.25),
    "bernoulli_": lambda y: y.bernoulli_(0.5),
    "put": put,
    "no_grad": without_gradients,
}
BREAKS = ("none", "before", "between", "after")


def program(save: Callable[[Tensor], Any], write: Write, where: str) -> Callable[[Tensor], Tensor]:
    def f(x: Tensor) -> Tensor:
        x = x * 1.5
        if where == "before":
            braze.graph_break()
        found, written = save(x)
        if where == "between":
            braze.graph_break()
        write(written)
        if where == "after":
            braze.graph_break()
        return found.sum() * 3

    return f


def outcome(f: Callable[[Tensor], Tensor], in_frame: bool) -> Tensor | None:
    """The gradient; None where the backward notices the write."""
    torch.manual_seed(0)
    x = torch.randn(3, 3, requires_grad=True)
    try:
        loss = f(x)
        if not in_frame:
            loss.backward()
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)
        return None
    return x.grad


def with_copies(f: Callable[[Tensor], Tensor], in_frame: bool) -> Tensor | None:
    """The gradient of what was saved when it was saved."""
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda t: t):
        return outcome(f, in_frame)


def check(
    plain: Callable[[Tensor], Tensor], compiled: Callable[[Tensor], Tensor], in_frame: bool
) -> int:
    """How many of two calls raised as eager."""
    expected, right = outcome(plain, in_frame), with_copies(plain, in_frame)
    raised = 0
    for _ in range(2):
        actual = outcome(compiled, in_frame)
        if actual is None:
            assert expected is None
            raised += 1
        else:
            torch.testing.assert_close(actual, right if expected is None else expected)
    return raised


def check_program(save: Callable[[Tensor], Any], write: Write, where: str, backend: str) -> None:
    plain = program(save, write, where)

    def step(x: Tensor) -> Tensor:
        loss = plain(x)
        loss.backward()
        return loss.detach()

    for f, in_frame in ((plain, False), (step, True)):
        check(f, braze.compile(f, backend=backend), in_frame)


@pytest.mark.parametrize("name", WRITES)
def test_written_in_the_frame(name: str) -> None:
    """Each day at every other pair of what is saved and where the graph breaks."""
    for save, where in todays(itertools.product(SAVED, BREAKS), 2, [*WRITES].index(name)):
        check_program(save, WRITES[name], where, "aot_eager")


@pytest.mark.parametrize("save", SAVED, ids=lambda save: save.__name__)
def test_written_by_kernels(save: Callable[[Tensor], Any]) -> None:
    check_program(save, WRITES["mul_"], "none", "braze")
    check_program(save, WRITES["mul_"], "between", "braze")


def called(save: Callable[[Tensor], Any], write: Write, x: Tensor) -> Tensor:
    found, written = save(x * 1.5)
    write(written)
    total: Tensor = found.sum() * 3
    return total


@pytest.mark.parametrize("name", WRITES)
def test_saved_by_the_frame_and_written_to_later(name: str) -> None:
    raised = 0
    for save in SAVED:
        compiled = braze.compile(save, backend="aot_eager")
        plain = functools.partial(called, save, WRITES[name])
        raised += check(plain, functools.partial(called, compiled, WRITES[name]), False)
    assert raised


@pytest.mark.parametrize("name", WRITES)
def test_saved_before_and_written_to_in_the_frame(name: str) -> None:
    """Here all that is saved is eager's, so eager's error is due."""
    for save in SAVED:
        plain = functools.partial(called, save, WRITES[name])
        compiled = braze.compile(WRITES[name], backend="aot_eager")
        raised = check(plain, functools.partial(called, save, compiled), False)
        assert raised == 2 * (outcome(plain, False) is None)
