"""The first call of a lazy module is one graph, and leaves what eager leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

import braze
from braze.errors import GraphBreakError

SHAPES = {"1d": (4, 3, 8), "2d": (2, 3, 8, 8), "3d": (2, 3, 5, 5, 5), "ar": (4, 3)}
LAZY = sorted(name for name in dir(nn) if name.startswith("Lazy"))


def made_of(name: str) -> nn.Module:
    arguments = () if "Norm" in name else (4,) if name == "LazyLinear" else (4, 3)
    return getattr(nn, name)(*arguments)  # type: ignore[no-any-return]


def check_as_eager(make: Callable[[], nn.Module], x: torch.Tensor, breaks: int = 0) -> None:
    """Two calls of a fresh module: results, class, state, hooks and random state are eager's."""
    plain, lazy = make(), make()
    compiled = braze.compile(lazy, backend="aot_eager", fullgraph=not breaks)
    states = []
    for module, call in ((plain, plain), (lazy, compiled)):
        torch.manual_seed(3)
        results = [call(x.clone()), call(x.clone())]
        states.append((results, torch.get_rng_state()))
        assert not any(isinstance(part, LazyModuleMixin) for part in module.modules())
    (expected, expected_state), (found, found_state) = states
    torch.testing.assert_close(found, expected)
    assert torch.equal(found_state, expected_state)
    assert [type(part) for part in lazy.modules()] == [type(part) for part in plain.modules()]
    torch.testing.assert_close(lazy.state_dict(), plain.state_dict())
    for part, twin in zip(lazy.modules(), plain.modules(), strict=True):
        assert len(part._forward_pre_hooks) == len(twin._forward_pre_hooks)
        assert vars(part).keys() == vars(twin).keys()
    row = braze.status().rows[-1]
    assert row.calls_left == 0
    assert bool(row.breaks) == bool(breaks)


@pytest.mark.parametrize("name", LAZY)
def test_each_lazy_module_is_one_graph(name: str) -> None:
    check_as_eager(lambda: made_of(name), torch.randn(SHAPES[name[-2:]]))


def test_many_lazy_layers_are_one_graph() -> None:
    def make() -> nn.Module:
        layers = [part for _ in range(8) for part in (nn.LazyLinear(6), nn.LazyBatchNorm1d())]
        return nn.Sequential(*layers)

    check_as_eager(make, torch.randn(4, 3))


def test_draws_before_a_lazy_layer_break_the_graph() -> None:
    make = lambda: nn.Sequential(nn.Dropout(0.5), nn.LazyLinear(4), nn.Dropout(0.5))  # noqa: E731
    check_as_eager(make, torch.randn(4, 3), breaks=1)


class Scaled(LazyModuleMixin, nn.Module):  # type: ignore[misc]
    """Reads its first input's data, as normalising flows do."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.UninitializedParameter()

    def initialize_parameters(self, x: torch.Tensor) -> None:
        type(self).calls += 1
        with torch.no_grad():
            self.scale.materialize(x.shape[1:])
            self.scale.copy_(x.std(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / self.scale


class Listed(Scaled):
    """Takes a list."""

    def initialize_parameters(self, x: Any) -> None:
        super().initialize_parameters(x[0])

    def forward(self, x: Any) -> torch.Tensor:
        return super().forward(x[0]) + x[1]


class Doubling(nn.Module):
    def __init__(self, inner: nn.Module, lists: bool = False) -> None:
        super().__init__()
        self.inner, self.lists = inner, lists

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner([x, 1] if self.lists else x) * 2


def check_own(make: Callable[[], nn.Module], breaks: int = 0) -> None:
    plain, lazy, x = make(), make(), torch.randn(5, 3)
    before = Scaled.calls, Listed.calls
    expected = plain(x)
    per_module = (Scaled.calls - before[0], Listed.calls - before[1])
    found = braze.compile(lazy, backend="eager", fullgraph=not breaks)(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(lazy.state_dict(), plain.state_dict())
    assert (Scaled.calls, Listed.calls) == tuple(
        b + 2 * n for b, n in zip(before, per_module, strict=True)
    )


def test_own_lazy_module_reads_what_the_frame_was_given() -> None:
    check_own(lambda: Doubling(Scaled()))
    check_own(lambda: Doubling(Listed(), lists=True))


def test_own_lazy_module_of_a_computed_input_breaks() -> None:
    check_own(lambda: nn.Sequential(nn.Tanh(), Scaled()), breaks=1)
    with pytest.raises(GraphBreakError, match="lazy module"):
        braze.compile(nn.Sequential(nn.Tanh(), Scaled()), fullgraph=True)(torch.ones(2, 3))


def test_own_lazy_module_after_a_write_sees_it() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Scaled()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.mul_(3)
            return self.inner(x)  # type: ignore[no-any-return]

    plain, lazy, x = Writing(), Writing(), torch.randn(5, 3)
    expected = plain(x.clone())
    torch.testing.assert_close(braze.compile(lazy, backend="eager")(x.clone()), expected)
    torch.testing.assert_close(lazy.state_dict(), plain.state_dict())


def test_count_kept_before_the_call_is_kept_once() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.count = nn.LazyLinear(2), 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count += 1
            return self.inner(x) + self.count

    torch.manual_seed(0)
    plain, x = Counting(), torch.randn(5, 3)
    lazy = copy.deepcopy(plain)
    expected = plain(x)
    torch.manual_seed(0)
    compiled = braze.compile(lazy, backend="eager")
    assert compiled(x).shape == expected.shape
    assert lazy.count == plain.count == 1


def test_refused_input_raises_as_eager() -> None:
    layer = nn.LazyConv2d(2, 3)
    with pytest.raises(RuntimeError, match="Expected 3D"):
        braze.compile(layer, backend="eager")(torch.ones(3, 3))
    assert isinstance(layer, LazyModuleMixin)
