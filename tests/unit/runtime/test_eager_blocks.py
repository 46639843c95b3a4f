"""Frames with a block in which everything runs eagerly are compiled again behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze
from braze.runtime.resume import frame_driver

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def plain(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with braze.disable():
        z = (y * 2).cos()
    return (z + 1).exp().sum()


def returns_inside(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with braze.disable():
        return y.cos()


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    for scale in (1.0, 2.0):
        x = x.sin() * scale
        with braze.disable():
            x = x.cos()
        x = x.exp()
    return x.tanh()


def with_comprehensions(x: torch.Tensor) -> torch.Tensor:
    y, seen = x.sin(), {}
    with braze.disable():
        rows = [row * i for i, row in enumerate(y)]
        named = {str(i): row.sum() for i, row in enumerate(rows)}
        kinds = {type(row) for row in rows}
        for name, value in named.items():
            if name == "1":
                continue
            seen[name] = value.cos()
        first, *rest = rows
        total = sum([*rest, first])
        text = f"{len(kinds)}:{len(seen)!r:>3}"
    assert text == "1:  2"
    return (total.tanh() + seen["0"] + len(text)).exp()


def with_functions(x: torch.Tensor) -> torch.Tensor:
    y, scale, more = x.sin(), 3, {"by": 4}
    with braze.disable():

        def scaled(value: torch.Tensor, *, by: int = 2) -> torch.Tensor:
            return value * by * scale

        z = scaled(y) + (lambda value, by=5: value * by)(y) + scaled(y, **more)
        scale += 1
    return scaled(z).exp()


def catches_inside(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with braze.disable():
        try:
            raise ValueError("inside")
        except ValueError as error:
            y = y * len(str(error))
    return y.exp()


def catches_outside(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    try:
        with braze.disable():
            y = y.cos()
            raise ValueError("inside")
    except ValueError as error:
        y = y * len(str(error))
    return y.exp()


def nested_blocks(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with braze.disable():
        y = y.cos()
        with braze.disable(), torch.no_grad():
            y = y.tan()
        y = y * 2
    return y.exp()


def in_an_inlined_function(x: torch.Tensor) -> torch.Tensor:
    return plain(x.tanh()).exp() + plain(x)


def in_a_stance(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with braze.set_stance("force_eager"):
        y = y.cos()
    return y.exp()


def long_loop(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    with braze.disable():
        total = 0
        for number in range(frame_driver._MOST_EAGER):
            total += number
    return (y * total).exp()


Program = Callable[[torch.Tensor], torch.Tensor]


def traced(function: Program) -> tuple[Any, list[list[str]], int]:
    """What it gives at the second call, the names of operators of each graph, and how many rests of
    the two calls were left to eager."""
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append([n.name for n in graph.graph.nodes if n.op.startswith("call")])
        return graph.forward

    compiled = braze.compile(function, backend=backend)
    compiled(X.clone())
    result = compiled(X.clone())
    (row,) = [row for row in braze.status().rows if row.name == function.__qualname__]
    return result, graphs, row.rests_left


@pytest.mark.parametrize(
    ("function", "graphs"),
    [
        (plain, [["sin"], ["add", "exp", "sum_1"]]),
        (returns_inside, [["sin"]]),
        (in_a_loop, [["sin", "mul"], ["exp", "sin", "mul"], ["exp", "tanh"]]),
        (with_comprehensions, [["sin"], ["tanh", "add", "add_1", "exp"]]),
        (nested_blocks, [["sin"], ["exp"]]),
        (in_a_stance, [["sin"], ["exp"]]),
    ],
)
def test_what_follows_a_block_is_a_graph(function: Program, graphs: list[list[str]]) -> None:
    result, found, left = traced(function)
    torch.testing.assert_close(result, function(X.clone()), rtol=0, atol=0)
    assert found == graphs
    assert left == 0


def test_functions_made_in_a_block_are_compiled_behind_it() -> None:
    result, found, left = traced(with_functions)
    torch.testing.assert_close(result, with_functions(X))
    assert [len(names) for names in found] == [1, 3] and left == 0


def test_each_caller_of_a_block_goes_on() -> None:
    result, found, left = traced(in_an_inlined_function)
    torch.testing.assert_close(result, in_an_inlined_function(X))
    assert sum(names.count("exp") for names in found) == 2 and left == 0


@pytest.mark.parametrize("function", [catches_inside, catches_outside, long_loop])
def test_rests_left_to_eager_are_counted(function: Program) -> None:
    result, found, left = traced(function)
    torch.testing.assert_close(result, function(X))
    assert len(found) == 1 and left == 2


def test_a_block_is_left_when_its_body_raises() -> None:
    def raises(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        with braze.disable():
            raise KeyError(y.shape)

    compiled, after = braze.compile(raises), braze.compile(lambda x: x.cos())
    with pytest.raises(KeyError):
        compiled(X)
    after(X)
    assert braze.status()[-1].graphs == 1
