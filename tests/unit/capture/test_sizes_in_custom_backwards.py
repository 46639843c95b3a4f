"""What a program's own backward reads of sizes and numbers may be another one at the next call: one
graph serves them all, and gives eager's gradients, of first and of second order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function

import braze
from braze.ir.graphs.graph import Graph, Node, Output, Value
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.ir.origin import UNKNOWN
from braze.shapes.expr import as_expr
from braze.shapes.facts import Facts
from braze.shapes.symbolic import of_expression
from braze.tracing.shape_rules.strides import contiguous

Program = Callable[[torch.Tensor, int], Any]


class Scale(Function):
    """The number is read in the backward alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, number: Any) -> torch.Tensor:
        ctx.number = number
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient * ctx.number, None


class Head(Function):
    """A number and the input's shape."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, number: int) -> torch.Tensor:
        ctx.number, ctx.shape = number, x.shape
        return x.narrow(0, 0, number).clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        made = gradient.new_zeros(ctx.shape)
        made[: ctx.number] = gradient * ctx.number * ctx.shape[0]
        return made, None


class Mean(Function):
    """Sizes of what was saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.mean(0)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return (gradient / x.shape[0]).expand(x.shape) * x.cos()


class Both(Function):
    """Which gradients come in is told; each choice has its formula."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, number: int) -> tuple[torch.Tensor, ...]:
        ctx.number = number
        ctx.set_materialize_grads(False)
        return x * number, x + number

    @staticmethod
    def backward(ctx: Any, first: Any, second: Any) -> Any:
        given = [g * (ctx.number + n) for n, g in enumerate((first, second)) if g is not None]
        return sum(given[1:], given[0]), None


PROGRAMS: dict[str, Program] = {
    "number": Scale.apply,
    "number of a size": lambda x, n: Scale.apply(x, n * x.shape[0]),
    "float": lambda x, n: Scale.apply(x, n * 0.5),
    "shape": lambda x, n: Head.apply(x, n).sin(),
    "saved": lambda x, n: Mean.apply(x * n),
    "choices": Both.apply,
    "one choice": lambda x, n: Both.apply(x, n)[1],
    "two functions": lambda x, n: Mean.apply(Scale.apply(x, n)),
}


def _gradients(program: Program, rows: int, number: int) -> list[torch.Tensor]:
    x = torch.linspace(-1, 1, rows * 3, dtype=torch.float64).reshape(rows, 3).requires_grad_()
    made = program(x, number)
    loss = sum(y.square().sum() for y in (made if isinstance(made, tuple) else (made,)))
    (first,) = torch.autograd.grad(loss, x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    made = program(x, number)
    loss = sum(y.sum() for y in (made if isinstance(made, tuple) else (made,)))
    return [first.detach(), second, *torch.autograd.grad(loss, x)]


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_at_other_sizes(name: str, dynamic: bool | None) -> None:
    """Three graphs at most: numbers as they are, then a number, then a size too."""
    program = PROGRAMS[name]
    compiled = braze.compile(
        lambda x, n: program(x, n), fullgraph=True, dynamic=dynamic, options={"recompile_limit": 3}
    )
    for rows, number in [(5, 2), (5, 3), (7, 4), (9, 9), (11, 6)]:
        found, right = (_gradients(one, rows, number) for one in (compiled, program))
        torch.testing.assert_close(found, right)
    (row,) = [row for row in braze.status().rows if row.graphs][-1:]
    assert row.graphs <= (1 if dynamic else 3)
    assert not row.left_to_eager


def test_a_graph_runs_with_no_size_of_a_trace() -> None:
    """C++ takes a symbol for 7777777 where it expects a tensor."""
    kind = contiguous(torch.float32, (3,), torch.device("cpu"))
    given, made = Value(0, kind), Value(1, kind)
    facts = Facts()
    size = of_expression(facts, as_expr(facts.new_symbol(None, 3)))
    node = Node(torch.ops.aten.mul.Tensor, (given, size), (), (made,), UNKNOWN, False)
    with pytest.raises(TypeError, match="a trace that is over"):
        compile_graph_runner(Graph((given,), (), (node,), (Output(made),), ()))
