"""Graphs of user backends whose sizes are symbols: one serves all sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import braze


class Noting:
    """A backend that runs the graphs it is given, and keeps them."""

    def __init__(self) -> None:
        self.modules: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
        self.modules.append(module)
        return module.forward


def halves(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = x.view(x.shape[0], -1) + 1
    z = torch.cat([y, y[: x.shape[0] // 2]], 0)
    return torch.relu(z @ w)[:, : x.shape[1] * 2]


def written(x: torch.Tensor) -> Any:
    x[: x.shape[0] // 2] += 1
    return x.reshape(-1)[2:], x.new_zeros(x.shape), x.shape[0] * 3


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.flip(0)[: x.shape[0] - 1]
    braze.graph_break()
    return y.expand(3, *y.shape) / x.shape[0]


CALLS: list[tuple[Any, Callable[[int], tuple[Any, ...]], int]] = [
    (halves, lambda n: (torch.randn(n, 3, 4), torch.randn(12, 20)), 1),
    (written, lambda n: (torch.randn(n, 3),), 1),
    (broken, lambda n: (torch.randn(n, 4),), 2),
]


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize(("program", "arguments", "graphs"), CALLS, ids=lambda p: str(p)[:18])
def test_one_graph_for_all_sizes(
    program: Any, arguments: Any, graphs: int, dynamic: bool | None
) -> None:
    backend = Noting()
    compiled = braze.compile(program, backend=backend, dynamic=dynamic)
    torch.manual_seed(0)
    for n in (4, 6, 9, 5):
        given = arguments(n)
        mine = [tensor.clone() for tensor in given]
        torch.testing.assert_close(compiled(*mine), program(*given))
        torch.testing.assert_close(mine, list(given))
    assert len(backend.modules) == graphs * (1 if dynamic else 2)


def test_sizes_are_read_in_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    backend = Noting()
    compiled = braze.compile(halves, backend=backend, dynamic=True)
    compiled(torch.randn(4, 3, 4), torch.randn(12, 20))
    (module,) = backend.modules
    assert "size = l_x_.size(0)" in module.code and "floordiv = size // 2" in module.code
    assert "size(2)" not in module.code  # nothing asks for it
    assert "l_x_.view(size, -1)" in module.print_readable(print_output=False)
    found = [node.target for node in module.graph.nodes if node.op == "call_method"]
    assert found == ["size", "size", "view"]


def test_gradients_through_a_graph_of_all_sizes() -> None:
    backend = Noting()
    compiled = braze.compile(halves, backend=backend, dynamic=True)
    for n in (4, 7):
        x, w = torch.randn(n, 3, 4), torch.randn(12, 20, requires_grad=True)
        (expected,) = torch.autograd.grad(halves(x, w).square().sum(), w)
        (found,) = torch.autograd.grad(compiled(x, w).square().sum(), w)
        torch.testing.assert_close(found, expected)
    assert len(backend.modules) == 1


def test_a_tensor_of_which_only_the_size_is_used() -> None:
    backend = Noting()
    compiled = braze.compile(lambda x, y: x * y.shape[0], backend=backend, dynamic=True)
    for n, k in ((4, 3), (6, 5)):
        x = torch.randn(n, 2)
        torch.testing.assert_close(compiled(x, torch.ones(k)), x * k)
    assert len(backend.modules) == 1


@pytest.mark.parametrize("writes", [False, True])
def test_a_compiler_that_looks_at_its_inputs_is_asked_again(writes: bool) -> None:
    asked: list[torch.Size] = []

    def fixed(module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        wanted = example_inputs[0].shape
        asked.append(wanted)

        def run(x: torch.Tensor) -> Any:
            made = module(x)
            if x.shape != wanted:
                raise AssertionError(f"expected {wanted}")
            return made

        return run

    def program(x: torch.Tensor) -> torch.Tensor:
        if writes:
            x += 1
        return x.cumsum(0) * x.shape[0]

    compiled = braze.compile(program, backend=fixed, dynamic=True)
    for n in (4, 6, 4, 6, 5):
        x = torch.randn(n, 2)
        mine = x.clone()
        torch.testing.assert_close(compiled(mine), program(x))
        assert torch.equal(mine, x)
    assert asked == [(4, 2), (6, 2), (5, 2)]


def test_a_graph_that_raises_at_other_sizes_leaves_the_frame_to_eager() -> None:
    def raising(module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        def run(x: torch.Tensor) -> Any:
            if x.shape[0] != 4:
                raise AssertionError("only four")
            return module(x)

        return run

    compiled = braze.compile(lambda x: x.exp().sum(0), backend=raising, dynamic=True)
    compiled(torch.ones(4, 2))
    with pytest.warns(braze.errors.BrazeWarning, match="only four"):
        found = compiled(torch.ones(5, 2))
    torch.testing.assert_close(found, torch.ones(5, 2).exp().sum(0))


def test_marked_sizes_are_read_in_the_graph() -> None:
    backend = Noting()
    compiled = braze.compile(lambda x: x.reshape(x.shape[0] * 3), backend=backend)
    x = torch.randn(4, 3)
    braze.mark_dynamic(x, 0)
    for given in (x, torch.randn(6, 3)):
        assert torch.equal(compiled(given), given.reshape(-1))
    assert len(backend.modules) == 1 and "size(0)" in backend.modules[0].code
