"""Calls that write to one of several arguments in one memory: an operator sees what it has written,
so what it is given cannot be copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import braze

_DEFINED = "braze_arguments_in_one_memory"


@torch.library.custom_op(f"{_DEFINED}::scale", mutates_args=("xs",))
def scale(xs: list[Tensor], by: float) -> None:
    for x in xs:
        x.mul_(by)


@torch.library.custom_op(f"{_DEFINED}::scale_both", mutates_args=("x", "y"))
def scale_both(x: Tensor, y: Tensor, by: float) -> None:
    x.mul_(by)
    y.mul_(by)


@torch.library.custom_op(f"{_DEFINED}::add_tripled", mutates_args=("x",))
def add_tripled(x: Tensor, y: Tensor) -> None:
    x.mul_(3)
    x.add_(y)


# Programs of a tensor of three elements.
SHARED: dict[str, Callable[[Tensor], object]] = {
    "a list of one tensor twice": lambda a: scale([a, a], 0.5),
    "a list with a view": lambda a: scale([a[1:], a], 0.5),
    "two arguments": lambda a: scale_both(a, a, 0.5),
    "an argument and its view": lambda a: scale_both(a, a.view(3, 1)[1:], 0.5),
    "an argument and what is detached": lambda a: scale_both(a[1:], a.detach(), 0.5),
    "one that is read": lambda a: add_tripled(a, a),
    "a view that is read": lambda a: add_tripled(a[:1], a[:1]),
    "foreach": lambda a: torch._foreach_mul_([a, a], 0.5),
}


@pytest.mark.parametrize("made_inside", [False, True], ids=["an input", "made inside"])
@pytest.mark.parametrize("name", SHARED)
def test_writes_are_seen_as_in_eager(name: str, made_inside: bool) -> None:
    def f(x: Tensor) -> Tensor:
        a = x + 1 if made_inside else x
        SHARED[name](a)
        return a * 2

    given, expected = torch.ones(3), torch.ones(3)
    compiled = braze.compile(f)
    for _ in range(2):
        torch.testing.assert_close(compiled(given), f(expected))
        torch.testing.assert_close(given, expected)


def test_arguments_in_memories_of_their_own_stay_in_the_graph() -> None:
    def f(a: Tensor, b: Tensor) -> Tensor:
        scale([a, b], 0.5)
        add_tripled(a, b)
        return a + b

    report = braze.explain(f)(torch.ones(3), torch.ones(3))
    assert report.break_count == 0
    torch.testing.assert_close(report.result, f(torch.ones(3), torch.ones(3)))
