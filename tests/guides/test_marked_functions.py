"""Functions that a program marks, as PyTorch's documentation shows it: traced whole, or often
called. By Braze's names and by PyTorch's."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import braze
from tests.guides.graphs import Counter
from tests.recorded import recorded

MARKS = {"torch": torch._dynamo.nonstrict_trace, "braze": braze.nonstrict_trace}
EITHER = pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
BACKENDS = pytest.mark.parametrize("backend", ["braze", "eager"])
Mark = Callable[[Any], Any]
_SCALE = torch.arange(3.0)


class Pair:
    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y


pytree.register_pytree_node(Pair, lambda p: ([p.x, p.y], None), lambda items, _: Pair(*items))


def _whole(function: Callable[..., Any], backend: Any, *args: Any) -> Any:
    """The result of the function in one graph: anything else raises."""
    return braze.compile(function, fullgraph=True, backend=backend)(*args)


@BACKENDS
@EITHER
def test_nonstrict_as_documented(mark: Mark, backend: str) -> None:  # D-13, D-14
    runs: list[str] = []

    @mark
    def magic() -> torch.Tensor:
        runs.append("traced")
        torch._dynamo.graph_break()
        return torch.tensor([42.0])

    assert torch.equal(
        _whole(lambda x: x + magic(), backend, torch.ones(3)), torch.full((3,), 43.0)
    )
    assert runs


@BACKENDS
@EITHER
def test_nonstrict_takes_containers(mark: Mark, backend: str) -> None:
    @mark
    def whole(pair: Pair, more: dict[str, Any], *, count: int) -> Any:
        torch._dynamo.graph_break()
        return {"pair": Pair(pair.x * count, pair.y + more["z"][0])}, count, None

    def function(x: torch.Tensor) -> Any:
        made, count, nothing = whole(Pair(x, x + 1), {"z": [x * 2]}, count=x.shape[0])
        assert nothing is None
        return made["pair"].x - made["pair"].y, count

    x = torch.randn(3)
    made, count = _whole(function, backend, x)
    torch.testing.assert_close(made, x * 3 - (x + 1 + x * 2))
    assert count == 3


@EITHER
def test_nonstrict_reaches_tensors_outside(mark: Mark) -> None:
    """A module's parameters, a global and a buffer: inputs of the graph, not numbers in it."""
    model, total = nn.Linear(3, 3), torch.zeros(3)

    @mark
    def whole(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        total.add_(x.sum(0))
        result: torch.Tensor = model(x) * _SCALE
        return result

    backend = Counter()
    for kind in ("braze", backend):
        compiled = braze.compile(lambda x: whole(x).square().sum(), fullgraph=True, backend=kind)
        total.zero_()
        for n in range(1, 3):
            x = torch.randn(2, 3)
            before = total.clone()
            model.zero_grad()
            compiled(x).backward()  # type: ignore[no-untyped-call]
            found = model.weight.grad
            torch.testing.assert_close(total, before + x.sum(0))
            wanted = torch.autograd.grad((model(x) * _SCALE).square().sum(), model.weight)
            torch.testing.assert_close(found, wanted[0])
            with torch.no_grad():
                model.weight.add_(n)
    assert len(backend.graphs) == 1


@EITHER
def test_nonstrict_tells_modules_apart(mark: Mark) -> None:
    @mark
    def run(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        result: torch.Tensor = model(x)
        return result

    first, second, x = nn.Linear(3, 4), nn.Linear(3, 4), torch.randn(2, 3)
    compiled: Any = braze.compile(lambda model, x: run(model, x).tanh(), fullgraph=True)
    for model in (first, second, first):
        torch.testing.assert_close(compiled(model, x), model(x).tanh())
    batch: Any = braze.compile(lambda x: torch.vmap(lambda x: run(first, x))(x), fullgraph=True)
    torch.testing.assert_close(batch(x), first(x))


@EITHER
def test_nonstrict_raises_as_eager(mark: Mark) -> None:
    @mark
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    @mark
    def opaque(x: torch.Tensor) -> object:
        return object()

    def function(x: torch.Tensor) -> torch.Tensor:
        try:
            made: torch.Tensor = fails(x)
            return made
        except ValueError:
            return x + 1

    x = torch.ones(2)
    assert torch.equal(_whole(function, "braze", x), x + 1)
    with pytest.raises(braze.exc.GraphBreakError, match="neither a tensor nor a number"):
        _whole(lambda x: (opaque(x), x + 1)[1], "braze", x)
    with pytest.raises(braze.exc.UserError, match="takes a Python function"):
        braze.nonstrict_trace(3)


# --- is_exporting --------------------------------------------------------------------------------


@pytest.mark.parametrize("asks", [torch.compiler.is_exporting, braze.is_exporting])
def test_exports_are_told_apart(asks: Callable[[], bool]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() if asks() else x.cos()

    x = torch.randn(3)
    exported = braze.export(function, x)
    assert "sin" in exported.graph_module.code
    assert torch.equal(exported.graph_module(x), x.sin())
    torch.testing.assert_close(_whole(function, "braze", x), x.cos())
    assert torch.equal(function(x), x.cos())


# --- nested_compile_region ------------------------------------------------------------------------

REGIONS = {"torch": torch.compiler.nested_compile_region, "braze": braze.nested_compile_region}


def _kernels(captured: str) -> int:
    """How many functions for kernels there are in the source that a log shows."""
    return len(re.findall(r"^static void \w+_range\(", captured, re.MULTILINE))


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_regions_are_compiled_once(region: Mark, capsys: pytest.CaptureFixture[str]) -> None:
    """Three regions have as many kernels as six, forward and backward, although other work stands
    between them; the layers have weights of their own."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.norm = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4)

        @region
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made: torch.Tensor = x + self.last(torch.tanh(self.first(self.norm(x))))
            return made

    found = []
    for count in (3, 6):
        layers = nn.ModuleList([Layer() for _ in range(count)])

        def function(x: torch.Tensor, layers: nn.ModuleList = layers) -> torch.Tensor:
            for layer in layers:
                x = layer(x).roll(1, 0)
            return x

        x = torch.randn(5, 4, requires_grad=True)
        wanted = torch.autograd.grad(function(x).sum(), x)
        with recorded() as journal:
            compiled = braze.compile(function, fullgraph=True)
            braze.set_logs("output_code")
            try:
                capsys.readouterr()
                made = torch.autograd.grad(compiled(x).sum(), x)
                found.append(_kernels(capsys.readouterr().err))
            finally:
                braze.set_logs("")
        torch.testing.assert_close(made, wanted)
        assert journal.records() and not journal.left_to_eager() and not journal.fallbacks()
    assert found[0] == found[1] > 0


def test_a_region_takes_arguments_of_torchs() -> None:
    @braze.nested_compile_region(max_reuse_entries=2)  # type: ignore[untyped-decorator]
    def block(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + 1

    x = torch.ones(3)
    assert torch.equal(block(x), x.sin() + 1)
    torch.testing.assert_close(_whole(lambda x: block(block(x)), "braze", x), block(block(x)))
    with pytest.raises(braze.exc.UserError, match="takes a callable"):
        braze.nested_compile_region(3)
