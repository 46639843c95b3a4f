"""Views that a compiled function gives may be written to by what carries gradients where
eager's may: kernels make them while autograd is off, and it refused (`f(x).add_(bias)`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze

Tensor = torch.Tensor
Program = Callable[[Tensor], Any]
BACKENDS = ("aot_eager", "braze")


def _written(x: Tensor) -> Tensor:
    row = (x * 2)[0]
    return row.sub_(1)


def _without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        return (x * 2)[0]


PLAIN: dict[str, Program] = {
    "of an input": lambda x: x[0],
    "of a result": lambda x: (x * 2).t(),
    "beside what it views": lambda x: [y := x * 2, y[1]],
    "written to": _written,
    "of an input that is written to": lambda x: x[0].add_(1),
}
REFUSED: dict[str, Program] = {
    "one of several": lambda x: x.unbind(0),
    "one of several of a result": lambda x: (x * 2).unbind(0),
}


def _added_to(program: Program, x: Tensor, grad: bool) -> Any:
    """The last result of a program behind a write with gradients, and those; or what is raised."""
    bias = torch.tensor(2.0, requires_grad=True)
    with torch.set_grad_enabled(grad):
        made = program(x)
    made = made[-1] if isinstance(made, (list, tuple)) else made
    try:
        made += bias
    except RuntimeError as error:
        return str(error).split(".")[0]
    made.sum().backward()
    return made.tolist(), bias.grad.item()  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", (*PLAIN, *REFUSED))
def test_writes_with_gradients(backend: str, name: str) -> None:
    program = {**PLAIN, **REFUSED}[name]
    expected = _added_to(program, torch.ones(2, 2), grad=True)
    assert isinstance(expected, str) == (name in REFUSED)
    compiled = braze.compile(program, backend=backend)
    for _ in range(2):
        assert _added_to(compiled, torch.ones(2, 2), grad=True) == expected


@pytest.mark.parametrize("name", PLAIN)
def test_views_made_without_gradients_refuse_them(name: str) -> None:
    expected = _added_to(PLAIN[name], torch.ones(2, 2), grad=False)
    found = _added_to(braze.compile(PLAIN[name]), torch.ones(2, 2), grad=False)
    assert found == expected


def test_a_part_without_gradients() -> None:
    expected = _added_to(_without_gradients, torch.ones(2, 2), grad=True)
    assert isinstance(expected, str)
    assert _added_to(braze.compile(_without_gradients), torch.ones(2, 2), grad=True) == expected


@pytest.mark.parametrize("backend", BACKENDS)
def test_behind_a_break(backend: str) -> None:
    def program(x: Tensor, bias: Tensor) -> Tensor:
        row = torch.neg(x)[0]
        row.sub_(1)
        print(end="")
        row += bias
        return row

    bias = torch.ones(2, requires_grad=True)
    found = braze.compile(program, backend=backend)(torch.ones(2, 2), bias)
    assert torch.equal(found, program(torch.ones(2, 2), bias))
    assert found.requires_grad
