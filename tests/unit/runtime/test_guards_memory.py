"""When snapshots of a frame's guards are made, and what they leave out."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from braze.interop.backends import Backend, Level
from braze.ir.captured.compile_request import FrameValues
from braze.ir.captured.source import LocalSource
from braze.options import config
from braze.runtime.guards.native_extension import LOADER
from braze.runtime.guards.snapshot_accessors import Pins
from braze.runtime.guards.snapshot_cache import SnapshotMemory
from braze.targets import make_dispatcher
from braze.trace import Journal

pytestmark = pytest.mark.skipif(LOADER.wait() is None, reason="the extension cannot be built")
_CALLS = 60


class Layer:
    """What every call has, and others after it."""

    def __init__(self, scale: float) -> None:
        self.scale = scale
        self.weight = torch.full((3,), scale)


class Cache:
    """What one call has."""

    def __init__(self, shift: float = 1.0) -> None:
        self.shift = shift


class Slotted:
    """Nothing refers to it weakly."""

    __slots__ = ("shift",)

    def __init__(self, shift: float = 1.0) -> None:
        self.shift = shift


def forward(layer: Layer, cache: Any, x: torch.Tensor) -> torch.Tensor:
    return x * layer.weight * layer.scale + cache.shift


def _called(pairs: Iterator[tuple[Layer, Any]]) -> SnapshotMemory:
    """The memory of the entry that serves all of these calls; each is right."""
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    function: Callable[..., Any] = dispatcher.compiled(forward)
    x = torch.arange(3.0)
    for layer, cache in pairs:
        assert torch.equal(function(layer, cache, x), forward(layer, cache, x))
    (entry,) = dispatcher.caches()[0].entries
    memory: SnapshotMemory = entry.memory
    return memory


def _made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that a snapshot is made."""
    made: list[str] = []
    remember = SnapshotMemory.remember

    def noted(self: SnapshotMemory, frame: Any) -> None:
        made.append("made")
        remember(self, frame)

    monkeypatch.setattr(SnapshotMemory, "remember", noted)
    return made


def test_what_comes_with_one_call_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that each call makes anew: the other guards are a snapshot all the same."""
    made, layer = _made(monkeypatch), Layer(2.0)
    memory = _called((layer, Cache()) for _ in range(_CALLS))
    assert len(made) == 3
    assert [[key for _, key, _ in t.roots] for t in memory._snapshots.values()] == [["layer"]]


@pytest.mark.parametrize("cls, snapshots", [(Cache, 65), (Slotted, 17)])
def test_what_is_kept_and_comes_no_more_is_not_pinned(
    cls: type, snapshots: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there still may be a layer that comes again; of the other nobody knows."""
    made, layer, kept = _made(monkeypatch), Layer(2.0), [cls() for _ in range(_CALLS + 30)]
    memory = _called((layer, cache) for cache in kept)
    assert len(made) == snapshots
    assert {key for t in memory._snapshots.values() for _, key, _ in t.roots} == {"layer"}


def test_a_bound_method_made_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its object and its function are pinned, not the method; another of either is noticed."""

    class Twice(Layer):
        def shifted(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale + self.weight

        def scaled(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight

    def call(method: Any, x: torch.Tensor) -> torch.Tensor:
        return method(x) + 1  # type: ignore[no-any-return]

    made, layers = _made(monkeypatch), [Twice(2.0), Twice(3.0)]
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    compiled: Callable[..., Any] = dispatcher.compiled(call)
    x = torch.arange(3.0)
    for _ in range(_CALLS):
        assert torch.equal(compiled(layers[0].shifted, x), call(layers[0].shifted, x))
    assert len(made) == 1
    (entry,) = dispatcher.caches()[0].entries
    (taken,) = entry.memory._snapshots.values()
    assert taken.snapshot.proven >= _CALLS - 2
    for method in (layers[1].shifted, layers[0].scaled, layers[1].scaled, layers[0].shifted):
        assert torch.equal(compiled(method, x), call(method, x))
    layers[0].scale = 5.0
    assert torch.equal(compiled(layers[0].shifted, x), call(layers[0].shifted, x))


def test_what_is_replaced_at_each_call_is_compared_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """An average that a module keeps: the other guards are a snapshot all the same."""
    made, layer, cache = _made(monkeypatch), Layer(2.0), Cache()

    def calls() -> Iterator[tuple[Layer, Cache]]:
        for _ in range(300):
            layer.weight = torch.full((3,), 2.0)
            yield layer, cache

    memory = _called(calls())
    (taken,) = memory._snapshots.values()
    assert len(made) == 2 and taken.snapshot.proven > 290
    assert [str(source) for source in memory._moving] == ["L['layer'].weight"]


def test_layers_that_replace_theirs_have_one_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one of them shows holds for all."""
    made, layers, cache = _made(monkeypatch), [Layer(2.0) for _ in range(6)], Cache()

    def calls() -> Iterator[tuple[Layer, Cache]]:
        for number in range(120):
            layer = layers[number % 6]
            layer.weight = torch.full((3,), 2.0)
            yield layer, cache

    memory = _called(calls())
    assert len(made) == 12 and len(memory._snapshots) == 6
    assert sum(taken.snapshot.proven for taken in memory._snapshots.values()) > 100


def test_what_moves_once_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """As all parameters do when others are loaded behind the second call."""
    monkeypatch.setattr("braze.runtime.guards.snapshot_cache._FEW_MOVED", 0)
    layer, cache = Layer(2.0), Cache()

    def calls() -> Iterator[tuple[Layer, Cache]]:
        for number in range(30):
            if number in (2, 3):
                layer.weight = torch.full((3,), 2.0)
            yield layer, cache

    memory = _called(calls())
    (taken,) = memory._snapshots.values()
    assert not memory._moving and taken.snapshot.proven > 20


def test_what_is_replaced_at_each_call_is_still_compared() -> None:
    """Another shape, another entry; a value of another kind, too."""
    layer, cache = Layer(2.0), Cache()
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    function: Callable[..., Any] = dispatcher.compiled(forward)
    x = torch.arange(3.0)
    others = [torch.ones(1), torch.ones(3, dtype=torch.float64), 2.0, torch.ones(3).double(), 3.0]
    for weight in [torch.full((3,), float(n)) for n in range(40)] + others * 2:
        layer.weight = weight  # type: ignore[assignment]
        assert torch.equal(function(layer, cache, x), forward(layer, cache, x))
        assert function(layer, cache, x).dtype == forward(layer, cache, x).dtype


def test_what_changes_at_each_call_is_asked_for_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody knows what it is; and is a snapshot in the end, when it changes no more."""
    made, layer, cache = _made(monkeypatch), Layer(2.0), Cache()
    monkeypatch.setattr(Pins, "found", lambda self: {})

    weights = [torch.full((3,), 2.0) for _ in range(150)]

    def calls() -> Iterator[tuple[Layer, Cache]]:
        for number in range(300):
            layer.weight = weights[min(number, 149)]
            yield layer, cache

    memory = _called(calls())
    (taken,) = memory._snapshots.values()
    assert len(made) == 7 and taken.snapshot.proven > 20


def test_cells_are_made_anew_for_each_frame() -> None:
    cell = types.CellType(3)
    pins = Pins(FrameValues({"cell": cell, "layer": Layer(1.0)}, (), {}), None)
    assert pins.pin(LocalSource("cell")) is None
    assert pins.pin(LocalSource("layer")) is not None


def test_what_takes_the_place_of_what_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of one call, most often where the last call's was."""
    made, layer, x = _made(monkeypatch), Layer(2.0), torch.arange(3.0)
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    function: Callable[..., Any] = dispatcher.compiled(forward)
    places = set()
    for _ in range(_CALLS):
        cache = Cache()
        places.add(id(cache))
        assert torch.equal(function(layer, cache, x), x * 4 + 1)
        del cache
    (entry,) = dispatcher.caches()[0].entries
    (taken,) = entry.memory._snapshots.values()
    assert len(places) < _CALLS / 2
    assert len(made) == 3 and taken.snapshot.proven > _CALLS - 6


@pytest.mark.parametrize("count", [12, 60])
def test_layers_that_alternate_have_one_each(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, layers, cache = _made(monkeypatch), [Layer(2.0) for _ in range(count)], Cache()
    memory = _called((layers[n % count], cache) for n in range(5 * count))
    assert len(made) == len(memory._snapshots) == count


def test_what_the_last_result_holds_comes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that a call hands out is there until the next call has handed out its own."""
    made, layer, x = _made(monkeypatch), Layer(2.0), torch.arange(3.0)
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    function: Callable[..., Any] = dispatcher.compiled(forward)
    for _ in range(_CALLS):
        cache = Cache()
        assert torch.equal(function(layer, cache, x), x * 4 + 1)
        held = cache
    assert held.shift == 1
    (entry,) = dispatcher.caches()[0].entries
    (taken,) = entry.memory._snapshots.values()
    assert len(made) == 3 and taken.snapshot.proven > _CALLS - 6


class Loader(Layer):
    """What iterates, and is the same at each call."""

    def __next__(self) -> float:
        return 1.0


def test_what_can_be_iterated_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    made, layer, cache = _made(monkeypatch), Loader(2.0), Cache()
    memory = _called((layer, cache) for _ in range(_CALLS))
    assert {key for t in memory._snapshots.values() for _, key, _ in t.roots} == {"layer", "cache"}
    assert len(made) == 1


def test_iterators_are_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a break in a loop over layers."""
    made, layers, x = _made(monkeypatch), [Layer(float(n)) for n in range(3)], torch.arange(3.0)

    def loop(x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(layers):
            if x.sum().item() < 0:
                x = x - 1
            x = x * layer.weight + number
        return x

    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    function: Any = dispatcher.compiled(loop)
    for _ in range(_CALLS):
        assert torch.equal(function(x), loop(x))
    entries = [entry for cache in dispatcher.caches() for entry in cache.entries]
    assert len(entries) > 2 and len(made) <= 2 * len(entries)
    for entry in entries:
        assert sum(t.snapshot.proven for t in entry.memory._snapshots.values()) > _CALLS - 6


def test_models_that_follow_each_other_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is gone when the next one comes, but served many calls."""
    made = _made(monkeypatch)
    cache = Cache()
    memory = _called((layer, cache) for _ in range(6) for layer in [Layer(2.0)] for _ in range(9))
    assert len(made) == 6 and not memory._passing


def test_changes_of_what_is_not_pinned_are_noticed() -> None:
    """Of another value there is another entry."""
    layer = Layer(2.0)
    dispatcher = make_dispatcher(config.snapshot(), Backend("aten", Level.ATEN), Journal())
    function: Callable[..., Any] = dispatcher.compiled(forward)
    x = torch.arange(3.0)
    for shift in (1.0,) * 9 + (True, 1.0, 5, 1.0, 7, 7):
        cache = Cache(shift)
        assert torch.equal(function(layer, cache, x), forward(layer, cache, x))
    layer.scale = 3.0
    assert torch.equal(function(layer, cache, x), forward(layer, cache, x))
