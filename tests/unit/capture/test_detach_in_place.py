"""`detach_()` of what a compiled function computes: the object loses its history, and what was
computed of it before keeps its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import braze


def _result(x: Tensor) -> Any:
    y = x * 2
    y.detach_()
    return y, y * x


def _same_object(x: Tensor) -> Any:
    y = x * 2
    z = y.detach_()
    return z is y, z * 1, x * 3


def _used_before(x: Tensor) -> Any:
    y = x * 2
    z = y * 3
    y.detach_()
    return y, z, y * x


def _written_behind(x: Tensor) -> Any:
    y = x * 2
    z = y * 3
    y.detach_()
    y.add_(1)
    return y, z, x * y


def _facts(x: Tensor) -> Any:
    y = x.exp()
    y.detach_()
    return y.requires_grad, y.is_leaf, y.grad_fn is None, y._is_view(), y._base is None, x * 2


def _of_a_view(x: Tensor) -> Any:
    y = (x * 2)[0]
    try:
        y.detach_()
    except RuntimeError as error:
        return str(error), x * 2


def _with_views(x: Tensor) -> Any:
    y = x * 2
    y.detach_()
    view, other = y[0], y.view(-1)
    other.mul_(2)
    return y, view, other, view * x, x * y


def _with_older_views(x: Tensor) -> Any:
    y = x * 2
    view = y[0]
    y.detach_()
    y.view(-1).mul_(2)
    return y, view.detach() * 1, x * y


def _behind_a_backward(x: Tensor) -> Any:
    y = x * 2
    (y * x).sum().backward()
    y.detach_()
    return y, x * 1


def _a_leaf_again(x: Tensor) -> Any:
    y = x * 2
    y.detach_().requires_grad_()
    (y * y).sum().backward()
    return y.grad, x * 2


def _truncated(x: Tensor) -> Any:
    state, losses = torch.zeros(4), []
    for row in x:
        state = torch.tanh(state + row)
        losses.append(state.sum())
        state.detach_()
    return torch.stack(losses).sum(), state


def _by_function(x: Tensor) -> Any:
    y = x.sin()
    torch.detach_(y)
    return y, y * x


def _without_gradients(x: Tensor) -> Any:
    y = x.sin()
    with torch.no_grad():
        y.detach_()
        z = y * 2
    return y, z, y * x


def _attributes(x: Tensor) -> Any:
    y = x.sin()
    y.tag = 3  # type: ignore[attr-defined]
    y.detach_()
    return y.tag, y, y * x  # type: ignore[attr-defined]


def _broken_off(x: Tensor) -> Any:
    y = x * 2
    z = y * 3
    y.detach_()
    braze.graph_break()
    return y, z, y * x


PROGRAMS = [_result, _same_object, _used_before, _written_behind, _facts, _of_a_view, _with_views]
PROGRAMS += [_with_older_views]
PROGRAMS += [_behind_a_backward, _a_leaf_again, _truncated, _by_function, _without_gradients]
PROGRAMS += [_attributes, _broken_off]
# Of what has views, whose history eager makes anew when the memory is written to.
BREAKS: dict[Any, set[str]] = {
    _broken_off: {"explicit"},
    _with_older_views: {"unsupported-tensor"},
}


@pytest.mark.parametrize(
    "options", [{}, {"dynamic": True}, {"backend": "eager"}, {"backend": "aot_eager"}], ids=str
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_detached_in_place(program: Callable[[Tensor], Any], options: Any) -> None:
    compiled = braze.compile(program, **options)
    for _ in range(2):
        found = []
        for function in (program, compiled):
            x = torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_()
            results = function(x)
            tensors = [r for r in results if isinstance(r, Tensor)]
            facts = [(r.requires_grad, r.is_leaf, r.stride()) for r in tensors]
            sum(r.sum() for r in tensors if r.requires_grad).backward()  # type: ignore[union-attr]
            rest = [r for r in results if not isinstance(r, Tensor)]
            found.append((rest, facts, [r.detach() for r in tensors], x.grad))
        eager, ours = found
        assert ours[:2] == eager[:2]
        torch.testing.assert_close(ours[2:], eager[2:])
    status = braze.status()[-1]
    assert not status.calls_left
    assert not status.rests_left or program is _with_older_views
    assert {note.code for note in status.breaks} == BREAKS.get(program, set())
