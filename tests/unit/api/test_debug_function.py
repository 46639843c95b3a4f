"""`BRAZE_DEBUG_FUNCTION`: functions of one name are compiled and logged, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import braze
from braze.compile_records import CompileRecord
from braze.errors import GraphBreakError

X = torch.linspace(-1, 1, 8).reshape(2, 4)


def helper(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).cos()


def target(x: torch.Tensor) -> torch.Tensor:
    for number in range(3):
        x = helper(x) + number
    return x.sin()


def breaking(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    print(end="")
    return y.exp()


class Block(nn.Module):
    def __init__(self, factor: int) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(4, 4), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) * self.factor


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*map(Block, range(12)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(300):  # more than what ends as breaks with nothing between
            x = x * 1.0
        x = self.blocks(x)
        print(end="")
        for number in range(12):
            x = x / (number + 1)
        return target(x) - helper(x)


def compiled_of(name: str, function: Any, *args: Any, **options: Any) -> list[CompileRecord]:
    """What is compiled in two calls, which give what eager does, and nothing more in the second."""
    told: list[CompileRecord] = []
    stop = braze.on_event(lambda event: event.record and told.append(event.record))
    try:
        made = braze.compile(function, options={"debug_function": name}, **options)
        expected = function(*args)
        torch.testing.assert_close(made(*args), expected)
        first = len(told)
        torch.testing.assert_close(made(*args), expected)
        assert len(told) == first
    finally:
        stop()
    return told


@pytest.mark.parametrize("fullgraph", (False, True))
def test_functions_of_the_name_alone_are_compiled(fullgraph: bool) -> None:
    with torch.no_grad():
        (only,) = compiled_of("target", Model(), X, fullgraph=fullgraph)
        assert only.function == "target" and only.outcome == "graph" and len(only.ops) == 10
        blocks = compiled_of("Block.forward", Model(), X, fullgraph=fullgraph)
        assert {record.function for record in blocks} == {"Block.forward"}
        assert all("aten.relu.default" in record.ops for record in blocks)
        assert compiled_of("nothing", Model(), X, fullgraph=fullgraph) == []


def test_the_plain_name_serves_too_and_the_root_may_have_it() -> None:
    (only,) = compiled_of("helper", helper, X)
    assert only.function == "helper" and len(only.ops) == 2
    assert compiled_of("forward", Block(2), X)[0].function == "Block.forward"
    assert compiled_of("orward", Block(2), X) == []  # as in PyTorch, no part of a name


def test_the_rest_behind_a_break_of_the_function_is_compiled() -> None:
    first, rest = compiled_of("breaking", lambda x: breaking(x + 1) * 2, X)
    assert (first.ops, rest.ops) == (("aten.sin.default",), ("aten.exp.default",))
    assert first.graph_break is not None and first.graph_break.code == "input-output"
    with pytest.raises(GraphBreakError, match="input-output"):
        compiled_of("breaking", lambda x: breaking(x + 1) * 2, X, fullgraph=True)


def test_gradients_flow_through_what_is_left_out() -> None:
    model = Model()
    x = X.clone().requires_grad_()
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    made = braze.compile(model, options={"debug_function": "target"})
    (found,) = torch.autograd.grad(made(x).sum(), x)
    torch.testing.assert_close(found, expected)


def test_logs_are_of_the_function_alone(capfd: pytest.CaptureFixture[str]) -> None:
    braze.set_logs("all")
    try:
        with torch.no_grad():
            braze.compile(Model(), options={"debug_function": "target"})(X)
    finally:
        braze.set_logs()
    said = capfd.readouterr().err
    first = target.__code__.co_firstlineno
    assert "inlined call" in said and "helper, depth 1" in said
    assert f"{__file__}:{first} [compile_times] target:" in said
    for absent in ("Model.forward", "Block", "[graph_breaks]"):
        assert absent not in said, absent


def test_a_frame_that_is_disabled_calls_compiled_code_however_long_it_is() -> None:
    @braze.disable(recursive=False)
    def own(x: torch.Tensor) -> torch.Tensor:
        for _ in range(300):
            x = x * 1.0
        return helper(x)

    told: list[CompileRecord] = []
    stop = braze.on_event(lambda event: event.record and told.append(event.record))
    try:
        made = braze.compile(lambda x: own(x + 1) * 2)
        torch.testing.assert_close(made(X), own(X + 1) * 2)
    finally:
        stop()
    assert ("aten.mul.Tensor", "aten.cos.default") in [record.ops for record in told]
