"""Backends by name: ours, registered ones, installed ones, PyTorch's."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch

from braze.errors import InvalidBackend, UserError
from braze.interop import backends
from braze.interop.backends import OWN, Backend, Backends, Level


def compiler(graph: torch.fx.GraphModule, example_inputs: Any, **keywords: Any) -> Any:
    return keywords


@pytest.fixture
def registry() -> Backends:
    return Backends()


@pytest.mark.parametrize("name", OWN)
def test_own(registry: Backends, name: str) -> None:
    backend = registry.find(name)
    assert backend.name == name
    assert (backend.compiler is None) == (backend.level is not Level.TORCH)


def test_eager_runs_the_graph_as_it_is(registry: Backends) -> None:
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    eager = registry.find("eager").compiler
    assert eager is not None
    assert torch.equal(eager(graph, [])(torch.zeros(2))[0], torch.ones(2))


def test_callables_get_mode_and_options_only_where_given(registry: Backends) -> None:
    def call(**arguments: Any) -> Any:
        found = registry.find(compiler, **arguments)
        assert found.compiler is not None
        return found.compiler(None, None)

    plain = Backend("compiler", Level.TORCH, compiler, takes_numbers=True)
    assert registry.find(compiler) == plain
    assert call(mode="max-autotune") == {"mode": "max-autotune"}
    assert call(options={"x": 1}) == {"options": {"x": 1}}
    assert call(options={}) == {}


def test_registration(registry: Backends) -> None:
    assert registry.register(compiler) is compiler
    assert registry.find("compiler").compiler is compiler
    registry.register(compiler, "other", tags=("debug",))
    assert registry.find("other").compiler is compiler
    assert "compiler" in registry.names()
    assert "other" not in registry.names()
    assert "other" in registry.names(exclude_tags=())
    for name in ("compiler", "braze"):
        with pytest.raises(UserError, match=f"backend '{name}' already"):
            registry.register(compiler, name)
    with pytest.raises(UserError, match="is a callable"):
        registry.register(3, "three")  # type: ignore[arg-type]


def test_entry_points_are_loaded_when_asked_for(
    registry: Backends, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = importlib.metadata.EntryPoint("theirs", f"{__name__}:compiler", "group")
    monkeypatch.setattr(backends, "_installed", lambda: {"theirs": entry})
    assert registry.find("theirs").compiler is compiler


def test_our_own_entry_point_is_there() -> None:
    (entry,) = importlib.metadata.entry_points(group=backends.ENTRY_POINT_GROUP, name="braze")
    assert entry.value == "braze.interop.torch_compile:braze_backend"
    assert "braze" not in backends._installed()


def test_pytorchs_registry(registry: Backends) -> None:
    names = registry.names()
    assert {"braze", "inductor", "cudagraphs"} <= set(names)
    assert "eager" not in names
    assert set(OWN) <= set(registry.names(exclude_tags=()))
    assert registry.find("cudagraphs").level is Level.TORCH
    with pytest.raises(InvalidBackend, match="Did you mean 'inductor'"):
        registry.find("inducto")


@pytest.mark.slow
@pytest.mark.xdist_group("inductor")
def test_inductor_compiles_a_torch_level_graph(registry: Backends) -> None:
    graph = torch.fx.symbolic_trace(lambda x, w: (torch.relu(x @ w),))
    inputs = [torch.randn(3, 4), torch.randn(4, 5)]
    inductor = registry.find("inductor", mode="reduce-overhead").compiler
    assert inductor is not None
    torch.testing.assert_close(
        inductor(graph, inputs)(*inputs)[0], torch.relu(inputs[0] @ inputs[1])
    )
