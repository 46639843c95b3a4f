"""Function modes of the program's own, default devices, and skipped functions, in and around
compiled code."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.decorators import skip
from torch.overrides import TorchFunctionMode

import braze


class Doubling(TorchFunctionMode):
    """Sums are twice what they are."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made * 2 if func is torch.add else made


def plain(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x.sin(), 1)


def test_a_mode_inside_is_one_break() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        with Doubling():
            y = torch.add(y, 1)
        return y.cos()

    x = torch.randn(3)
    explained = braze.explain(function)(x)
    assert [each.code for each in explained.break_reasons] == ["global-state"]
    compiled = braze.compile(function)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))


def test_a_mode_around_sees_the_program() -> None:
    x, compiled = torch.randn(3), braze.compile(plain)
    torch.testing.assert_close(compiled(x), plain(x))
    with Doubling():
        torch.testing.assert_close(compiled(x), (x.sin() + 1) * 2)
        with pytest.raises(braze.exc.Unsupported, match="Doubling"):
            braze.compile(plain, fullgraph=True)(x)
    torch.testing.assert_close(compiled(x), plain(x))


def test_devices_in_a_block_are_part_of_the_graph() -> None:
    def function(x: torch.Tensor) -> tuple[Any, ...]:
        with torch.device("meta"):
            made = torch.ones(3)
        return x + torch.ones(3), made.device, made.shape

    x = torch.randn(3)
    explained = braze.explain(function)(x)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    result, *facts = braze.compile(function, fullgraph=True)(x)
    torch.testing.assert_close(result, x + 1)
    assert facts == [torch.device("meta"), torch.Size([3])]


def test_default_devices_hold_behind_the_call() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.device]:
        torch.set_default_device("meta")
        made = torch.empty(3)
        return x + 1, made.device

    x, compiled = torch.randn(3), braze.compile(function)
    for _ in range(2):
        try:
            result, device = compiled(x)
            assert torch.get_default_device().type == "meta"
        finally:
            torch.set_default_device(None)
        torch.testing.assert_close(result, x + 1)
        assert device.type == "meta"


def test_skipped_functions_have_no_graph_and_what_they_call_does() -> None:
    def inner(y: torch.Tensor) -> torch.Tensor:
        return y.tan()

    @skip
    def skipped(y: torch.Tensor) -> torch.Tensor:
        return inner(y.cos())

    def function(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = skipped(x.sin()) + 1
        return result

    x = torch.randn(3)
    explained = braze.explain(function)(x)
    assert [each.code for each in explained.break_reasons] == ["disabled"]
    operators = [str(node.target) for graph in explained.graphs for node in graph.graph.nodes]
    assert any("tan" in name for name in operators)
    assert not any("cos" in name for name in operators)
    with pytest.raises(braze.exc.GraphBreakError, match="disabled"):
        braze.compile(function, fullgraph=True)(x)
    compiled = braze.compile(function)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
