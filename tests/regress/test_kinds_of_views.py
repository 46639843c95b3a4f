"""An entry that was compiled for a tensor serves another one only where autograd takes both for the
same kind of view, if the program came to that."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


def doubled_or_less_one(x: torch.Tensor) -> torch.Tensor:
    try:
        x.mul_(2)
    except RuntimeError:  # a view of a leaf
        return x - 1
    return x


def multiplied(x: torch.Tensor) -> torch.Tensor:
    x.mul_(torch.ones(2, requires_grad=True))
    return x


def trained(x: torch.Tensor) -> Any:
    weight = torch.full((2,), 3.0, requires_grad=True)
    x.mul_(weight)
    x.sum().backward()
    return weight.grad


def view_before_a_silent_write(x: torch.Tensor) -> torch.Tensor:
    view = x[:1]
    with torch.no_grad():
        x.mul_(2)
    return view * 3


def asked(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x._is_view() else x - 1


def base_of(x: torch.Tensor) -> Any:
    return x + 1 if x._base is None else x._base + 2, x[:1]._base is x


def silent(x: torch.Tensor) -> torch.Tensor:
    x.data.mul_(2)
    return x + 1


def a_view_without_gradients() -> torch.Tensor:
    with torch.no_grad():
        return torch.ones(3)[:2]


# Tensors of one shape, dtype and so on.
WITHOUT_GRADIENTS: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.ones(2),
    lambda: torch.ones(3)[:2],
    lambda: torch.ones(3, 2).unbind()[0],
    a_view_without_gradients,
)
LEAVES: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.ones(2).requires_grad_(),
    lambda: torch.ones(3)[:2].requires_grad_(),
)
COMPUTED: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.ones(2, requires_grad=True) * 2,
    lambda: torch.ones(3, requires_grad=True)[:2],
    lambda: (torch.ones(3, requires_grad=True) * 2)[:2],
    lambda: (torch.ones(3, 2, requires_grad=True) * 2).unbind()[0],
)
PROGRAMS = (
    doubled_or_less_one,
    multiplied,
    trained,
    view_before_a_silent_write,
    asked,
    base_of,
    silent,
)


def outcome(function: Any, x: torch.Tensor) -> Any:
    try:
        result = function(x)
    except RuntimeError as problem:
        # The names of nodes differ from version to version.
        return re.sub("Output 0 of [A-Za-z]+", "", str(problem)).partition(".")[0]
    tensors = result if isinstance(result, tuple) else (result,)
    return [
        (t.requires_grad, t.tolist()) if isinstance(t, torch.Tensor) else t for t in (*tensors, x)
    ]


@pytest.mark.parametrize("makers", [WITHOUT_GRADIENTS, LEAVES, COMPUTED])
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_kind_as_in_eager_after_each_other(program: Any, makers: Any) -> None:
    expected = [outcome(program, make()) for make in makers]
    for first in range(len(makers)):
        compiled = braze.compile(program, backend="aot_eager", options={"suppress_errors": False})
        for number in (first, *range(len(makers))):
            assert outcome(compiled, makers[number]()) == expected[number], (first, number)


def test_what_is_not_asked_is_not_guarded() -> None:
    compiles = 0

    def backend(module: Any, inputs: Any) -> Any:
        nonlocal compiles
        compiles += 1
        return module

    def plain(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    compiled = braze.compile(plain, backend=backend)
    for make in WITHOUT_GRADIENTS:
        torch.testing.assert_close(compiled(make()), plain(make()), rtol=0, atol=0)
    assert compiles == 1


def test_the_version_of_an_input_is_its_own() -> None:
    def program(x: torch.Tensor) -> Any:
        before = x._version
        x[:1].add_(1)
        made = x * 2
        made.add_(1)
        return before, x._version, x[1:]._version, x.detach()._version, made._version

    compiled = braze.compile(program, backend="eager")
    for writes in (0, 1, 3, 0):
        x, y = torch.ones(3), torch.ones(3)
        for _ in range(writes):
            x.mul_(1), y.mul_(1)
        assert compiled(x) == program(y)
