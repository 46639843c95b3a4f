"""The examples of PyTorch's guides to torch.compile, and what they promise of graphs and breaks."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.models import Size, build, find

import braze


def dct(x: Any) -> Any:
    """A discrete cosine transform of type II, as scipy's, by NumPy's Fourier transform."""
    count = x.shape[-1]
    mirrored = np.concatenate([x, x[..., ::-1]], -1)
    turned = np.exp(-1j * np.pi * np.arange(count) / (2 * count))
    return (np.fft.fft(mirrored)[..., :count] * turned).real.astype(x.dtype)


class Graphs:
    """A user's backend: keeps the graphs and runs them as they are."""

    def __init__(self) -> None:
        self.modules: list[torch.fx.GraphModule] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.modules.append(module)
        return module.forward


def graphs_of(function: Callable[..., Any], *calls: tuple[Any, ...]) -> int:
    """How many graphs some calls need, each of which must give what eager gives."""
    backend = Graphs()
    compiled = braze.compile(function, backend=backend)
    explained = braze.compile(function)
    for args in calls:
        expected = function(*copy.deepcopy(args))
        torch.testing.assert_close(compiled(*copy.deepcopy(args)), expected)
        torch.testing.assert_close(explained(*copy.deepcopy(args)), expected)
    return len(backend.modules)


def breaks_of(function: Callable[..., Any], *args: Any) -> list[str]:
    """The codes of the breaks of a first call."""
    return [note.code for note in braze.explain(function)(*args).break_reasons]


def test_a_backend_that_prints_the_graph_of_densenet(capsys: pytest.CaptureFixture[str]) -> None:
    def my_compiler(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        print("my_compiler() called with FX graph:")
        module.graph.print_tabular()
        return module.forward

    spec = find("densenet121")
    model = build(spec, size=Size.BENCHMARK).model
    image = torch.randn(1, 3, 64, 64)
    compiled = braze.compile(model, backend=my_compiler)
    with torch.no_grad():
        torch.testing.assert_close(compiled(image), model(image))
    printed = capsys.readouterr().out
    assert printed.count("my_compiler() called") == 1
    lines = printed.splitlines()
    assert re.match(r"opcode +name +target +args +kwargs", lines[1])
    called = sum(line.startswith(("call_function", "call_method")) for line in lines)
    assert called > 400  # 121 layers: convolutions, norms, activations, concatenations, pools
    assert sum("conv2d" in line.split()[1] for line in lines[3:]) == 120


def bar(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_a_branch_on_data_is_three_graphs_over_both_signs() -> None:
    calls = [(torch.randn(10), torch.ones(10)), (torch.randn(10), -torch.ones(10))]
    assert graphs_of(bar, *calls) == 3
    assert graphs_of(bar, *calls, *calls) == 3
    assert breaks_of(bar, *calls[0]) == ["data-dependent-branch"]


def toy_example(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x)
    print("graph break")
    if y.sum() > 0:
        y = y + 1
    return y * 2


def test_print_and_if_are_three_graphs_and_two_breaks() -> None:
    assert graphs_of(toy_example, (torch.ones(4),)) == 3
    assert breaks_of(toy_example, torch.ones(4)) == ["input-output", "data-dependent-branch"]


def test_deepcopy() -> None:
    def copies(x: torch.Tensor, nested: dict[str, Any]) -> torch.Tensor:
        other = copy.deepcopy(nested)
        other["list"].append(3)
        other["tensor"].add_(1)
        return x * other["list"][-1] + other["tensor"] - nested["tensor"] + len(nested["list"])

    nested = {"list": [1, 2], "tensor": torch.ones(3)}
    assert graphs_of(copies, (torch.ones(3), nested)) == 1
    assert breaks_of(copies, torch.ones(3), nested) == []


def test_a_transform_of_numpy_in_the_middle() -> None:
    def transformed(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x) * 2
        z = torch.from_numpy(dct(y.numpy()))
        return torch.sin(z) + x

    # Up to the Fourier transform, which NumPy does itself; the rest of `dct`; the rest behind it.
    assert graphs_of(transformed, (torch.arange(8.0),)) == 3
    assert breaks_of(transformed, torch.arange(8.0)) == ["numpy"]


def test_item_of_a_float_is_computed_by_the_graph() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        largest = x.max().item()
        return (x + largest).sin()

    assert graphs_of(scaled, (torch.ones(3),)) == 1
    assert breaks_of(scaled, torch.ones(3)) == []


def test_item_of_an_integer_breaks_once_and_goes_on_with_a_number() -> None:
    def shifted(x: torch.Tensor) -> torch.Tensor:
        place = x.argmax().item()
        return (x + place).sin()

    assert graphs_of(shifted, (torch.ones(3),)) == 2
    assert breaks_of(shifted, torch.ones(3)) == ["data-dependent-value"]


def test_appending_to_lists() -> None:
    seen: list[int] = []

    def appends(x: torch.Tensor) -> torch.Tensor:
        parts = []
        for step in range(3):
            parts.append(x + step)
            seen.append(step)
        return torch.stack(parts)

    assert graphs_of(appends, (torch.ones(3),)) == 1
    assert seen == [0, 1, 2] * 3


def test_a_wrong_call_raises_the_error_of_eager() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        y = torch.add(x, 1)
        return torch.sin(y, y)  # type: ignore[call-overload, no-any-return]

    x = torch.ones(3)
    with pytest.raises(TypeError) as eager:
        wrong(x)
    for settings in ({}, {"fullgraph": True}):
        with pytest.raises(TypeError) as compiled:
            braze.compile(wrong, **settings)(x)  # type: ignore[call-overload]
        assert str(compiled.value) == str(eager.value)


def test_fullgraph_names_the_place_the_reason_the_way_out_and_the_graph() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        y = torch.cos(x)
        if y.sum() > 0:
            return torch.sin(y)
        return y

    with pytest.raises(braze.exc.GraphBreakError) as raised:
        braze.compile(branch, fullgraph=True)(torch.randn(10))
    message = str(raised.value)
    line = branch.__code__.co_firstlineno + 2
    assert message.startswith(f"{__file__}:{line}: graph break under fullgraph=True")
    assert "[data-dependent-branch]" in message
    assert "torch.cond" in message
    assert 'cos: "f32[10][1]cpu" = torch.cos(l_x_)' in message
    assert raised.value.code == "data-dependent-branch"
    assert raised.value.graph in message
