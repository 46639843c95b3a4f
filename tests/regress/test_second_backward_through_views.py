"""A write through a view frees its part of the history: a second backward is refused in eager, and
gave gradients once more, through views made in the frame and through arguments that are views."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import braze


def through_base(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    z = z * 1
    z.view(-1).sub_(x)
    z.sum().backward()
    return z


def through_view(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    z = z * 1
    view = z.view(-1)
    view -= x
    view.sum().backward()
    return z


def no_view(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    z = z * 1
    z -= x
    z.sum().backward()
    return z


def outcome(program: Any) -> Any:
    x, z = torch.ones(3, requires_grad=True), torch.ones(3)
    result = program(x, z)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return str(error).partition("(")[0], x.grad.tolist()  # type: ignore[union-attr]
    return x.grad.tolist()  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", [through_base, through_view, no_view])
def test_what_is_refused_is_what_eager_refuses(program: Any, backend: str) -> None:
    assert outcome(braze.compile(program, backend=backend)) == outcome(program)
    assert (program is no_view) is (type(outcome(program)) is list)


def through_argument(x: torch.Tensor, z: torch.Tensor) -> Any:
    z.sub_(x)
    return z.sum(), z


def through_view_of_argument(x: torch.Tensor, z: torch.Tensor) -> Any:
    z[1:].sub_(x[1:])
    return z.sum() + 1, x * 2


def backward_through_argument(x: torch.Tensor, z: torch.Tensor) -> Any:
    z.sub_(x)
    z.sum().backward()
    return z, z + 1


def through_intermediate(x: torch.Tensor, z: torch.Tensor) -> Any:
    y = z * 1
    y.view(-1).sub_(x)
    return y.sum(), y, y + 1, x - z


def read_before(x: torch.Tensor, z: torch.Tensor) -> Any:
    y = z - x
    early = y + 1
    y.view(-1).add_(x)
    return early, y


AFTERWARDS = [
    through_argument,
    through_view_of_argument,
    backward_through_argument,
    through_intermediate,
    read_before,
]


def gradients_one_by_one(program: Any, of_a_view: bool, order: int) -> Any:
    """What backwards of the results and of the argument leave, each asked for twice."""
    x, base = torch.ones(3, requires_grad=True), torch.ones(6)
    z = base[:3] if of_a_view else torch.ones(3)
    results = [*program(x, z), z]
    seen: list[Any] = [(z._version, base._version)]
    for result in [*results, *results][::order]:
        if not result.requires_grad:
            continue
        try:
            result.sum().backward()
        except RuntimeError as error:
            seen.append(str(error).partition("(")[0])
        seen.append(None if x.grad is None else x.grad.tolist())
    return seen


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("of_a_view", [True, False])
@pytest.mark.parametrize("backend", ["braze", "aot_eager"])
@pytest.mark.parametrize("program", AFTERWARDS)
def test_backwards_one_after_the_other(
    program: Any, backend: str, of_a_view: bool, order: int
) -> None:
    expected = gradients_one_by_one(program, of_a_view, order)
    assert (
        gradients_one_by_one(braze.compile(program, backend=backend), of_a_view, order) == expected
    )


def test_one_function_for_views_and_others() -> None:
    compiled = braze.compile(through_argument)
    for of_a_view in (False, True, False, True):
        expected = gradients_one_by_one(through_argument, of_a_view, 1)
        assert gradients_one_by_one(compiled, of_a_view, 1) == expected
