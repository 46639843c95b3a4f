"""A view that was made under no_grad: autograd refuses to write to it what carries gradients. The
graph by eager kernels made it anew with gradients enabled, and the write passed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def of_an_input(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x.view(-1)


def of_a_result(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 1
    with torch.no_grad():
        v = y.view(-1)
    return v, y


def of_a_written_input(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x.mul_(2)
    with torch.no_grad():
        return x[0]


def beside_gradients(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        v = x.view(-1)
    return v, x * w


def of_a_view(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        v = x.t()
    return v[0]


def with_gradients(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x.view(-1)


def written(program: Callable[..., Any], has_history: bool) -> Any:
    """What a write to the program's view gives."""
    x, w = torch.ones(2, 3), torch.ones(3, requires_grad=True)
    made = program(x * w if has_history else x, w)
    view = made[0] if type(made) is tuple else made
    try:
        view += torch.ones_like(view) * w.sum()
    except RuntimeError as error:
        return str(error)
    return view.tolist(), view._version


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "aot_eager_decomp_partition", "eager"])
@pytest.mark.parametrize("has_history", [False, True])
@pytest.mark.parametrize(
    "program",
    [of_an_input, of_a_result, of_a_written_input, beside_gradients, of_a_view, with_gradients],
)
def test_a_write_is_refused_where_eager_refuses(
    program: Callable[..., Any], has_history: bool, backend: str
) -> None:
    expected = written(program, has_history)
    found = written(braze.compile(program, backend=backend), has_history)
    if type(expected) is tuple:
        assert found == expected
        return
    assert "created in no_grad mode" in expected
    assert type(found) is str  # which names the operator, or not
    assert found.partition("created in")[2] == expected.partition("created in")[2]


def beside_its_base(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 1
    with torch.no_grad():
        v = y[0]
    return v, y, x * w


def all_without_gradients(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.no_grad():
        y = x * w
        v = y.t()
    return v, y, x * w


def of_a_base_with_gradients(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    with torch.no_grad():
        v = y[0]
    return v, y


def detached(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * w
    return y.detach(), y


@pytest.mark.parametrize("backend", ["braze", "aot_eager", "eager"])
@pytest.mark.parametrize(
    "program", [beside_its_base, all_without_gradients, of_a_base_with_gradients, detached]
)
def test_it_is_a_view_where_others_carry_gradients(
    program: Callable[..., Any], backend: str
) -> None:
    """It was marked as detached of a base that carries no gradients, and `detach()` gives no
    view of such a base."""

    def facts(program: Callable[..., Any]) -> Any:
        view, base, *_ = program(torch.ones(2, 3), torch.ones(3, requires_grad=True))
        view.detach().zero_()
        return view._is_view(), view._base is base, view.requires_grad, view._version, base.tolist()

    assert facts(braze.compile(program, backend=backend)) == facts(program)
