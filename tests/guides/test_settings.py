"""What programs set on `torch._dynamo.config` around their compiles, as guides show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.config

import braze
from braze.errors import BrazeWarning
from braze.trace import JOURNAL


@pytest.fixture
def installed() -> Iterator[None]:
    braze.reset()
    with braze.install():
        yield


def compiles_at(sizes: tuple[int, ...], **given: Any) -> int:
    """How often a function compiles that is called with these sizes."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    compiled = torch.compile(function, **given)
    before = len(JOURNAL.records())
    for size in sizes:
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), function(x))
    return len(JOURNAL.records()) - before


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("settings", "compiles"),
    [
        ({}, 2),
        ({"assume_static_by_default": False}, 1),
        ({"automatic_dynamic_shapes": False}, 4),
        ({"dynamic_shapes": False}, 4),
        ({"recompile_limit": 2, "automatic_dynamic_shapes": False}, 2),
        ({"cache_size_limit": 2, "automatic_dynamic_shapes": False}, 2),
        ({"disable": True}, 0),
    ],
)
def test_settings_of_dynamo_steer_compiles(settings: dict[str, Any], compiles: int) -> None:
    with torch._dynamo.config.patch(settings):
        assert compiles_at((3, 4, 5, 6)) == compiles


@pytest.mark.usefixtures("installed")
def test_arguments_go_before_settings() -> None:
    with torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        assert compiles_at((3, 4, 5, 6), dynamic=True) == 1
        assert compiles_at((3, 4, 5, 6), options={"dynamic_shapes": True}) == 2


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("setting", "breaks"), [({}, 1), ({"capture_scalar_outputs": True}, 0)])
def test_scalars_are_captured_where_it_is_set(setting: dict[str, bool], breaks: int) -> None:
    def count(x: torch.Tensor) -> torch.Tensor:
        n = int(x.sum().item())
        return torch.zeros(n) + x[0]

    with torch._dynamo.config.patch(setting):
        compiled: Callable[..., Any] = torch.compile(count)
    x = torch.ones(3)
    assert torch.equal(compiled(x), count(x))
    assert braze.explain(compiled)(x).graph_break_count == breaks


@pytest.mark.usefixtures("installed")
def test_settings_that_mean_nothing_are_warned_of() -> None:
    for name in ("error_on_recompile", "fail_on_recompile_limit_hit"):
        with torch._dynamo.config.patch({name: True}), pytest.warns(BrazeWarning, match=name):
            torch.compile(torch.sin)


def test_settings_are_not_heeded_unless_installed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.cos()

    with torch._dynamo.config.patch(disable=True):
        assert braze.compile(function) is not function


def test_patches_in_and_around_compiled_code() -> None:
    """They hold while eager code of the program looks, and are undone."""
    usual = torch._dynamo.config.recompile_limit

    @torch._dynamo.config.patch(recompile_limit=3)
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return x * torch._dynamo.config.recompile_limit

    def block(x: torch.Tensor) -> torch.Tensor:
        with torch._dynamo.config.patch(recompile_limit=5):
            y = x * torch._dynamo.config.recompile_limit
        return y + decorated(x) * torch._dynamo.config.recompile_limit

    x = torch.randn(3)
    for function in (decorated, block):
        compiled = braze.compile(function)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), function(x))
        assert torch._dynamo.config.recompile_limit == usual
    reading = braze.explain(lambda x: x * torch._dynamo.config.recompile_limit)(x)
    assert (reading.graph_count, reading.graph_break_count) == (1, 0)
    with torch._dynamo.config.patch(recompile_limit=3):
        compiled = braze.compile(lambda x: x * torch._dynamo.config.recompile_limit)
        assert torch.equal(compiled(x), x * 3)
    assert torch.equal(compiled(x), x * usual)
