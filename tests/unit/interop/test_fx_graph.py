"""GraphModules made from captured graphs run, print, copy and pickle."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx

from braze.interop.fx_graph import NotExpressible, aten_to_fx, to_fx
from braze.ir.captured.frame import CapturedFrame, FromConstant, Return, TorchCall
from braze.ir.captured.source import AttributeSource, LocalSource
from braze.ir.graphs.graph import Value
from braze.ir.origin import UNKNOWN
from braze.tracing import Tracer


class Calls:
    """Records torch-level calls as capture does."""

    def __init__(self) -> None:
        self.tracer = Tracer()
        self.calls: list[TorchCall] = []

    def values(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self.tracer.value_of(x)
        if isinstance(x, (tuple, list)):
            return type(x)(map(self.values, x))
        return x

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        noted = tuple(map(self.values, args))
        named = tuple((name, self.values(a)) for name, a in kwargs.items())
        with self.tracer:
            if isinstance(target, str):
                result = getattr(args[0], target)(*args[1:], **kwargs)
            else:
                result = target(*args, **kwargs)
        self.calls.append(
            TorchCall(
                target,
                noted,
                named,
                self.values(tuple(result))
                if type(result) in (tuple, list)
                else self.values(result),
                UNKNOWN,
            )
        )
        return result


def frame_of(program: Callable[..., Any], *inputs: torch.Tensor) -> CapturedFrame:
    calls = Calls()
    results = program(calls, *[calls.tracer.add_input(t) for t in inputs])
    finished = calls.tracer.finish(results)
    sources = [LocalSource("x"), AttributeSource(LocalSource("self"), "weight")]
    return CapturedFrame(
        code=frame_of.__code__,
        guards=(),
        inputs=tuple(sources[i] for i in finished.inputs),
        graph=finished.graph,
        calls=tuple(calls.calls),
        effects=(),
        exit=Return(FromConstant(None)),
    )


def program(call: Calls, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    y = call(torch.nn.functional.linear, x, w)
    parts = call("chunk", y, 2, dim=1)
    row = call(torch.select, y, 0, 0)
    call("mul_", y, 3)
    total = call(torch.add, row, call(torch.cat, [parts[0], parts[1]], dim=1), alpha=2)
    table = call(torch.tensor, [1.0, 2.0, 3.0, 4.0])
    return [call("relu", total), call(torch.add, table, 1)]


def eager(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    y = torch.nn.functional.linear(x, w)
    parts, row = y.chunk(2, dim=1), y[0]
    y.mul_(3)
    total = torch.add(row, torch.cat([parts[0], parts[1]], dim=1), alpha=2)
    return [total.relu(), torch.tensor([1.0, 2.0, 3.0, 4.0]) + 1]


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_graph_modules_run(level: str) -> None:
    x, w = torch.randn(2, 3), torch.randn(4, 3)
    frame = frame_of(program, x, w)
    module = to_fx(frame) if level == "torch" else aten_to_fx(frame.graph)
    assert isinstance(module, fx.GraphModule)
    if level == "torch":
        names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
        assert names == ["l_x_", "l_self_weight"]
        assert torch.nn.functional.linear in {node.target for node in module.graph.nodes}
    for form in (module, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        for want, have in zip(eager(x, w), form(x, w), strict=True):
            torch.testing.assert_close(have, want)


def test_write_backs_and_views_in_the_aten_module() -> None:
    def write(call: Calls, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        call("add_", x, 1)
        return [call("t", x), call(torch.max, x, 1)[1]]

    x, w = torch.randn(2, 3), torch.randn(2)
    frame = frame_of(write, x, w)
    before = x.clone()
    view, index = aten_to_fx(frame.graph)(x)
    assert torch.equal(x, before + 1) and torch.equal(index, x.max(1)[1])
    view.zero_()
    assert x.abs().sum() == 0


def test_values_that_no_call_makes_are_named() -> None:
    frame = frame_of(program, torch.randn(2, 3), torch.randn(4, 3))
    lost = CapturedFrame(frame.code, (), frame.inputs, frame.graph, (), (), frame.exit)
    assert isinstance(to_fx(lost), fx.GraphModule)  # all by ATen calls
    stranger = Value(10_000, frame.graph.inputs[0].type)
    call = TorchCall("relu", (stranger,), (), stranger, UNKNOWN)
    module = to_fx(
        CapturedFrame(frame.code, (), frame.inputs, frame.graph, (call,), (), frame.exit)
    )
    assert "relu" not in {
        str(node.target) for node in module.graph.nodes if node.op == "call_method"
    }
    assert issubclass(NotExpressible, ValueError)


def test_graphs_print_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tabulate")
    to_fx(frame_of(program, torch.randn(2, 3), torch.randn(4, 3))).graph.print_tabular()
    assert "placeholder" in capsys.readouterr().out
