"""`torch.compile(backend="braze")`: graphs are compiled by Braze, and numbers agree."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import braze
from braze.interop import torch_compile
from tests.recorded import recorded


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(self.linear(x)), -1) + x


def function(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() + 1) * 2


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", braze.exc.BrazeWarning)
        yield
    torch._dynamo.reset()


def _kernels(journal: Any) -> list[tuple[str, bool]]:
    """The outcome of each compile, and whether it gave kernels."""
    return [(r.outcome, r.counters.get("kernels", 0) > 0) for r in journal.records()]


WAYS: dict[str, Callable[[torch.nn.Module], Any]] = {
    "torch.compile": lambda module: torch.compile(module, backend="braze"),
    "fullgraph": lambda module: torch.compile(module, backend="braze", fullgraph=True),
    "mode": lambda module: torch.compile(module, backend="braze", mode="max-autotune"),
    "options": lambda module: torch.compile(module, backend="braze", options={"numerics": "eager"}),
    "the function": lambda module: torch.compile(module, backend=torch_compile.braze_backend),
    "forward": lambda module: torch.compile(module.forward, backend="braze"),
    "Module.compile": lambda module: module.compile(backend="braze") or module,
}


@pytest.mark.parametrize("way", WAYS)
def test_forward_and_backward_are_compiled(way: str) -> None:
    module = Block()
    x = torch.randn(3, 4)
    wanted = module(x)
    wanted.sum().backward()
    gradient = module.linear.weight.grad
    module.zero_grad()
    with recorded() as journal:
        compiled = WAYS[way](module)
        result = compiled(x)
        result.sum().backward()
    torch.testing.assert_close(result, wanted)
    torch.testing.assert_close(module.linear.weight.grad, gradient)
    assert _kernels(journal) == [("graph", True), ("backward", True)]


def test_options_reach_braze() -> None:
    """Those that begin with nothing fused differ in their kernels."""
    counts = []
    for numerics in ("default", "eager"):
        torch._dynamo.reset()
        with recorded() as journal:
            torch.compile(function, backend="braze", options={"numerics": numerics})(torch.ones(4))
        counts.append(len(journal.records()))
    assert counts == [1, 1]
    for wrong in ({"numerics": "nonsense"}, {"nonsense": 1}):
        torch._dynamo.reset()
        with pytest.raises(Exception) as raised:
            torch.compile(function, backend="braze", options=wrong)(torch.ones(3))
        assert _says_which_option(raised.value)
    torch._dynamo.reset()
    with pytest.raises(Exception) as raised:
        torch.compile(function, backend="braze", mode="nonsense")(torch.ones(3))
    assert _says_which_option(raised.value)


def _says_which_option(error: BaseException) -> bool:
    """Whether it is Braze's error, or torch.compile's that names it."""
    return "InvalidOption" in f"{type(error).__name__}: {error}"


def test_open_sizes_are_compiled_once() -> None:
    with recorded() as journal:
        compiled = torch.compile(function, backend="braze", dynamic=True)
        for size in (4, 5, 60):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), function(x))
    assert _kernels(journal) == [("graph", True)]


def test_numbers_that_may_change_are_given_as_such() -> None:
    """PyTorch's capture makes tensors of them, whose items no kernel of ATen takes."""
    with recorded() as journal:

        def function(x: Any, scale: float, eps: float) -> Any:
            return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=eps) * scale

        compiled = torch.compile(function, backend="braze", dynamic=True)
        for scale, eps in ((1.5, 1e-5), (2.5, 1e-5), (0.5, 0.25), (-1.0, 0.5)):
            x = torch.randn(3, 5)
            torch.testing.assert_close(compiled(x, scale, eps), function(x, scale, eps))
    assert all(record.graph_break is None for record in journal.records())
    assert {kind for kind, has_kernels in _kernels(journal) if has_kernels} == {"graph"}


def test_changed_sizes_are_compiled_twice() -> None:
    with recorded() as journal:
        compiled = torch.compile(function, backend="braze")
        for size in (4, 5, 60):
            x = torch.randn(size)
            torch.testing.assert_close(compiled(x), function(x))
    assert _kernels(journal) == [("graph", True)] * 2


def test_pieces_between_graph_breaks() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        torch._dynamo.graph_break()
        return y.cos() * 2

    with recorded() as journal:
        x = torch.randn(4)
        torch.testing.assert_close(torch.compile(program, backend="braze")(x), program(x))
    assert _kernels(journal) == [("graph", True)] * 2


def test_regions_of_pytorchs_graphs() -> None:
    """Context managers and checkpoints are operators with a body there."""

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x * 2
        with torch.autocast("cpu", dtype=torch.bfloat16):
            z = x @ y
        return checkpoint(lambda t: torch.relu(t @ t) + 1, z.float(), use_reentrant=False)

    x = torch.randn(3, 3, requires_grad=True)
    wanted = torch.autograd.grad(program(x).sum(), x)
    with recorded() as journal:
        got = torch.autograd.grad(torch.compile(program, backend="braze")(x).sum(), x)
    torch.testing.assert_close(got, wanted)
    assert _kernels(journal) == [("graph", True), ("backward", True)]
    assert not any(record.graph_break for record in journal.records())


@pytest.mark.skipif(
    not hasattr(torch.compiler, "set_default_backend"), reason="this PyTorch has no such setting"
)
def test_default_backend() -> None:
    x = torch.randn(4)
    with recorded() as journal:
        torch.compiler.set_default_backend("braze")
        try:
            compiled = torch.compile(function)
        finally:
            torch.compiler.set_default_backend(None)
        torch.testing.assert_close(compiled(x), function(x))
    assert _kernels(journal) == [("graph", True)]


def test_called_directly() -> None:
    graph = torch.fx.symbolic_trace(lambda x: (torch.sin(x) * 2,))
    x = torch.randn(5)
    with recorded() as journal:
        (result,) = torch_compile.braze_backend(graph, [x], mode="default")(x)
    torch.testing.assert_close(result, torch.sin(x) * 2)
    assert _kernels(journal) == [("graph", True)]


def test_result_is_no_method() -> None:
    """PyTorch replaces a bound method of a lazy graph module by the module's own forward."""
    graph = torch.fx.symbolic_trace(lambda x: (torch.sin(x) * 2,))
    result = torch_compile.braze_backend(graph, [torch.ones(3)])
    assert not hasattr(result, "__self__") and result.__name__ != "_lazy_forward"
