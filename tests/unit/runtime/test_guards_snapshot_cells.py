"""What a closure holds, in snapshots: cells that stay, and cells that each call makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from braze.interop.backends import Backend, Level
from braze.ir.captured.guard import Guard
from braze.options import config
from braze.runtime.dispatch.cache_entries import CacheEntry
from braze.runtime.guards.native_extension import LOADER
from braze.runtime.guards.snapshot_cache import SnapshotMemory
from braze.targets import make_dispatcher
from braze.trace import Journal
from tests.unit.runtime.residual_guards import note_residual_guards

pytestmark = pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")
_X = torch.arange(3.0)


class Layer(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.full((3,), scale))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight + self.scale


class Closed:
    """A function whose closure is all that it reads, and what changes it."""

    def __init__(self) -> None:
        layer, weights, shift = Layer(2.0), [torch.ones(3), torch.full((3,), 2.0)], torch.ones(3)
        factor, names = 3, {"a": 1.0}

        def forward(x: torch.Tensor) -> torch.Tensor:
            return layer(x) * weights[0] * factor - weights[1] + shift * names["a"]

        def change(**values: Any) -> None:
            nonlocal layer, weights, shift, factor, names
            layer, weights = values.get("layer", layer), values.get("weights", weights)
            shift, factor = values.get("shift", shift), values.get("factor", factor)
            names = values.get("names", names)

        self.function, self.change = forward, change
        self.layer, self.weights, self.names = layer, weights, names


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[list[Guard]]:
    """Of each snapshot the guards that it leaves to generated Python."""
    return note_residual_guards(monkeypatch)


def _compiled(function: Any) -> tuple[Callable[..., Any], Callable[[], list[CacheEntry]]]:
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    return dispatcher.compiled(function), lambda: [
        entry for cache in dispatcher.caches() for entry in cache.entries
    ]


def _proven(memory: SnapshotMemory) -> int:
    return sum(taken.snapshot.proven for taken in memory._snapshots.values())


def test_what_a_closure_holds_is_read_by_the_snapshot(made: list[list[Guard]]) -> None:
    closed = Closed()
    compiled, entries = _compiled(closed.function)
    for _ in range(20):
        assert torch.equal(compiled(_X), closed.function(_X))
    assert made == [[]]
    assert _proven(entries()[0].memory) >= 18


CHANGES: dict[str, Callable[[Closed], Any]] = {
    "another layer": lambda c: c.change(layer=Layer(5.0)),
    "a layer's number": lambda c: setattr(c.layer, "scale", 7.0),
    "a layer's parameter": lambda c: setattr(c.layer, "weight", nn.Parameter(torch.zeros(3))),
    "other weights": lambda c: c.change(weights=[torch.zeros(3), torch.zeros(3)]),
    "more weights": lambda c: c.change(weights=[*c.weights, torch.ones(3)]),
    "a weight": lambda c: c.weights.__setitem__(1, torch.full((3,), 9.0)),
    "a weight of another dtype": lambda c: c.weights.__setitem__(1, torch.ones(3).double()),
    "another tensor": lambda c: c.change(shift=torch.full((3,), 4.0)),
    "a tensor of another size": lambda c: c.change(shift=torch.ones(1)),
    "another number": lambda c: c.change(factor=8),
    "another dict": lambda c: c.change(names={"a": 4.0}),
    "an item of the dict": lambda c: c.names.update(a=6.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_behind_a_cell_is_noticed(change: str) -> None:
    closed = Closed()
    compiled, _ = _compiled(closed.function)
    for _ in range(4):
        assert torch.equal(compiled(_X), closed.function(_X))
    CHANGES[change](closed)
    for _ in range(4):
        assert torch.equal(compiled(_X), closed.function(_X))


def test_closures_of_one_code_have_a_snapshot_each(made: list[list[Guard]]) -> None:
    """They share an entry as long as what they hold is alike."""
    closed = [Closed() for _ in range(3)]
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    compiled: list[Any] = [dispatcher.compiled(c.function) for c in closed]  # type: ignore[arg-type]
    for n in range(60):
        c = closed[n % 3]
        assert torch.equal(compiled[n % 3](_X), c.function(_X))
    (entry,) = dispatcher.caches()[0].entries
    assert _proven(entry.memory) > 40
    assert len(made) <= 6


def test_cells_that_each_call_makes_are_found_out(made: list[list[Guard]]) -> None:
    """Behind a break, a frame's own cell, and the function that has it: two snapshots in vain, and
    the next one leaves them out."""
    layer = Layer(2.0)

    def forward(x: torch.Tensor) -> torch.Tensor:
        weights = [x, x + 1]

        def inner() -> torch.Tensor:
            return weights[0] * weights[1]

        shift = 1 if x.sum().item() > 1e6 else 0
        return layer(inner()) + shift

    compiled, entries = _compiled(forward)
    for n in range(30):
        assert torch.equal(compiled(_X + n % 2), forward(_X + n % 2))
    behind = [entry.memory for entry in entries()[1:]]
    assert behind and all(_proven(memory) >= 24 for memory in behind)
    assert len(made) == 3 * len(behind) + 1


def test_a_cell_that_is_emptied() -> None:
    layer = Layer(2.0)

    def forward(x: torch.Tensor, reads: bool) -> torch.Tensor:
        return layer(x) if reads else x + 1

    compiled, _ = _compiled(forward)
    for _ in range(4):
        assert torch.equal(compiled(_X, True), layer(_X))
    cell = forward.__closure__[0]  # type: ignore[index]
    del cell.cell_contents
    assert torch.equal(compiled(_X, False), _X + 1)
    with pytest.raises(NameError):
        compiled(_X, True)
    cell.cell_contents = other = Layer(3.0)
    assert torch.equal(compiled(_X, True), other(_X))
