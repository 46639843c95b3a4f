"""A backward in the frame uses up the history of a custom autograd function, and something else
leaves the frame with a history: one graph, in which each history is as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze


class Plain(torch.autograd.Function):
    """A function that saves nothing: a second backward goes through it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * 3


class Saving(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # type: ignore[override]
        return g * 3 * ctx.saved_tensors[0]  # type: ignore[no-any-return]


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Any:
        ctx.set_materialize_grads(False)
        y = x.exp()
        ctx.save_for_backward(y)
        return y, x * 2

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:  # type: ignore[override]
        first = 0 if g is None else g * ctx.saved_tensors[0]
        return first + (0 if h is None else h * 5)


class _First:
    """The first result of several, by the same name."""

    @staticmethod
    def apply(x: Tensor) -> Tensor:
        y, _ = Several.apply(x)
        return y  # type: ignore[no-any-return]


def _loss(function: Any, x: Tensor) -> Any:
    y = (function.apply(x) * x).sum()
    y.backward()
    return (y,)


def _loss_and_other(function: Any, x: Tensor) -> Any:
    y = (function.apply(x) * x).sum()
    y.backward()
    return y, x * 2


def _applied_again(function: Any, x: Tensor) -> Any:
    y = function.apply(x).sum()
    y.backward()
    return y, (function.apply(x) * x).sum()


def _retained(function: Any, x: Tensor) -> Any:
    y = function.apply(x * 2)
    z = y.sum()
    z.backward(retain_graph=True)
    return z, y * x


def _detached(function: Any, x: Tensor) -> Any:
    y = function.apply(x)
    y.sum().backward()
    return x * 3, y.detach()


def _second_order(function: Any, x: Tensor) -> Any:
    y = function.apply(x * x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    return ((slope * x).sum(),)


def _gradient(function: Any, x: Tensor) -> Any:
    (slope,) = torch.autograd.grad(function.apply(x).sum(), x)
    return slope, x * 2


def _one_of_two(function: Any, x: Tensor) -> Any:
    y, w = function.apply(x), function.apply(x)
    y.sum().backward()
    return w, y


def _twice(function: Any, x: Tensor) -> Any:
    y = function.apply(x).sum()
    y.backward()
    y.backward()
    return (x * 2,)


def _without_need(function: Any, x: Tensor) -> Any:
    y = (function.apply(x.detach()) * x).sum()
    y.backward()
    return y, x * 2


PROGRAMS = [_loss, _loss_and_other, _applied_again, _retained, _detached, _second_order, _gradient]
PROGRAMS += [_one_of_two, _twice, _without_need]


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize("function", [Plain, Saving, _First])
@pytest.mark.parametrize("program", PROGRAMS)
def test_histories(program: Callable[[Any, Tensor], Any], function: Any, backend: str) -> None:
    found: list[Any] = []
    for call in (program, braze.compile(program, backend=backend)):
        x = torch.linspace(0, 1, 3).requires_grad_()
        ends: list[Any] = []
        try:
            results = call(function, x)
        except RuntimeError as error:
            found.append((str(error).split(".")[0], x.grad))
            continue
        for result in results:
            if not result.requires_grad:
                continue
            try:
                result.sum().backward()
                ends.append("differentiated")
            except RuntimeError as error:
                ends.append(str(error).split("(")[0])
        found.append((ends, [r.detach() for r in results], x.grad))
    eager, ours = found
    assert ours[0] == eager[0]
    torch.testing.assert_close(ours[1:], eager[1:])
    status = braze.status()[-1]
    # The graphs that such backends get call the function, behind what the frame has written.
    assert not status.breaks or (backend == "eager" and program is _applied_again)
