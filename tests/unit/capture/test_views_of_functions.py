"""Programs' autograd functions that return views of what they are given, as gradient reversal does:
whatever leaves the compiled function, its gradients go through the function's own backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function

import braze
from tests.unit.capture.test_autograd_functions import Identity


class Reversed(Function):
    """The gradient's sign changes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * -0.5


class Detached(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class Sliced(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x[::2]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        made = gradient.new_zeros(ctx.shape)
        made[::2] = gradient * 7
        return made


class Parts(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        return x[0], x[1:]

    @staticmethod
    def backward(ctx: Any, first: Tensor, rest: Tensor) -> Tensor:
        return torch.cat([first[None] * 3, rest * 5])


FUNCTIONS: list[type[Function]] = [Reversed, Detached, Identity, Sliced, Parts]
# What it is given, and what becomes of what it returns: each pair is a program.
GIVEN: dict[str, Callable[[Tensor], Tensor]] = {
    "a result": lambda x: x * 2,
    "a row of one": lambda x: (x * 2).view(-1, 3)[:3],
    "an input": lambda x: x,
    "a view of one": lambda x: x.t(),
    "another's": lambda x: Reversed.apply(x * 2),
}
MADE: dict[str, Callable[[Any], Any]] = {
    "it": lambda y: y,
    "a row": lambda y: y[0],
    "transposed": lambda y: y.t(),
    "flat": lambda y: y.reshape(-1),
    "rows": lambda y: y.unbind(0),
    "expanded": lambda y: y[None].expand(2, *y.shape),
    "it and a row": lambda y: (y, y[0]),
    "detached, too": lambda y: (y.detach(), y),
    "another result": lambda y: y * 2,
    "of a row": lambda y: y[0] * 2,
    "both": lambda y: (y, y.exp()),
}


def _gradients(program: Callable[[Tensor], Any]) -> list[Any]:
    x = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3).requires_grad_()
    made = program(x)
    results = list(made) if isinstance(made, (tuple, list)) else [made]
    sum(((y * y).sum() * (n + 1) for n, y in enumerate(results)), torch.zeros(())).backward()
    shared = [(a is not b) and _share(a, b) for a in results for b in results]
    return [[y.detach() for y in results], x.grad, [y.requires_grad for y in results], shared]


def _share(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@pytest.mark.parametrize("backend", ["braze", "eager", "aot_eager"])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_gradients(function: Any, given: str, backend: str) -> None:
    for name, make in MADE.items():

        def program(x: Tensor, make: Any = make) -> Any:
            made = function.apply(GIVEN[given](x))
            return make(made[-1] if isinstance(made, tuple) else made)

        compiled = braze.compile(program, backend=backend)
        right, found = _gradients(program), _gradients(compiled)
        torch.testing.assert_close(found, right, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["it", "a row", "another result"])
def test_one_graph(name: str, function: Any) -> None:
    def program(x: Tensor) -> Any:
        made = function.apply((x * 2).relu())
        return MADE[name](made[-1] if isinstance(made, tuple) else made)

    if function is Sliced and name == "it":
        pytest.skip("its rows lie apart, and it breaks")
    compiled = braze.compile(program, fullgraph=True)
    torch.testing.assert_close(_gradients(compiled), _gradients(program))
    (row,) = braze.status().rows
    assert (row.graphs, row.calls_left) == (1, 0)


def test_what_it_is_a_view_of_is_written_to() -> None:
    """An error in eager, as soon as the view is used."""

    def program(x: Tensor) -> Tensor:
        z = x * 2
        y: Tensor = Reversed.apply(z)
        z.mul_(3)
        return y

    for one in (program, braze.compile(program)):
        with pytest.raises(RuntimeError, match="custom Function"):
            _gradients(one)
