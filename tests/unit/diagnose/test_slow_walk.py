"""`braze.bisect(f, times=True)` names the planted slow-down, and the user's line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.__main__ import main
from braze.compat.torch.aten import aten
from braze.diagnose import slow_walk
from braze.ir.graphs.graph import Graph, Value
from braze.ir.kernels.loops import Scalar
from braze.ir.kernels.scalars import apply
from braze.ir.types import TensorType
from braze.lower.rules import RULES
from braze.rewrite import passes

_SIGMOID = "aten.sigmoid.default"


def function(x: torch.Tensor) -> torch.Tensor:
    y = x * 2 + 1
    return torch.sigmoid(y) - 1


def _with_more_work(value: Scalar) -> Scalar:
    made = value
    for number in range(15):
        gamma = apply("lgamma", apply("add", value, 2.0 + number))
        made = apply("add", made, apply("maximum", apply("minimum", gamma, -1e3), 0.0))
    return made


def _slow_kernel(patch: pytest.MonkeyPatch) -> None:
    """The same values by forty logarithms of gamma functions more."""
    right = RULES[_SIGMOID].rule

    def rule(call: Any, *args: Any, **kwargs: Any) -> Any:
        body = right(call, *args, **kwargs)
        return lambda coordinates: _with_more_work(body(coordinates))

    patch.setitem(RULES, _SIGMOID, replace(RULES[_SIGMOID], rule=rule))


def _with_singular_values(graph: Graph) -> Graph:
    """The first result, and zero times the singular values of the first input."""
    (x, *_), (first, *rest) = graph.inputs, graph.outputs
    kind, node = x.type, graph.nodes[-1]
    assert isinstance(kind, TensorType)
    number = replace(kind, shape=(), stride=(), requires_grad=False)
    kinds = [replace(number, shape=(min(kind.shape),), stride=(1,)), number, number]
    found = [Value(f"more{n}", each) for n, each in enumerate([*kinds, first.value.type])]
    values, total, nothing, result = found
    steps: list[tuple[Any, tuple[Any, ...], Value]] = [
        (aten.linalg_svdvals.default, (x,), values),
        (aten.sum.default, (values,), total),
        (aten.mul.Tensor, (total, 0), nothing),
        (aten.add.Tensor, (first.value, nothing), result),
    ]
    more = [replace(node, op=op, args=args, kwargs=(), outputs=(to,)) for op, args, to in steps]
    outputs = (replace(first, value=result), *rest)
    return replace(graph, nodes=(*graph.nodes, *more), outputs=outputs)


def _slow_pass(patch: pytest.MonkeyPatch) -> None:
    def slow(each: Any) -> Any:
        if each.name != "remove_redundant_copies":
            return each
        return replace(each, run=lambda graph, state: _with_singular_values(each.run(graph, state)))

    patch.setattr(passes, "PASSES", tuple(map(slow, passes.PASSES)))


def test_a_slow_kernel_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    _slow_kernel(monkeypatch)
    with torch.no_grad():
        found = braze.bisect(function, times=True)(torch.randn(50_000)).suspect
    assert found is not None and (found.kind, found.stage) == ("slow-down", "codegen"), found
    assert "sigmoid" in found.part and "us by operators" in found.detail
    line = function.__code__.co_firstlineno + 2
    assert line in [origin.line for origin in found.origins]
    assert "return torch.sigmoid(y) - 1" in str(found)


def test_a_pass_that_slows_a_graph_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _slow_pass(monkeypatch)
    with torch.no_grad():
        found = braze.bisect(function, times=True)(torch.randn(200, 200)).suspect
    assert found is not None and found.kind == "slow-down", found
    assert (found.stage, found.part) == ("rewrite", "remove_redundant_copies"), found


def test_times_are_of_no_concern_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    _slow_kernel(monkeypatch)
    x = torch.randn(1000)
    with torch.no_grad():
        assert braze.bisect(function)(x).suspect is None
        monkeypatch.setattr(slow_walk, "SLOWER", 1e9)
        monkeypatch.setattr("braze.diagnose.bisect.SLOWER", 1e9)
        assert braze.bisect(function, times=True)(x).suspect is None


@pytest.mark.nightly
def test_a_script_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n@torch.compile\ndef f(x):\n    return torch.sigmoid(x) * 2\n"
        "with torch.no_grad():\n    f(torch.randn(100000))\n"
    )
    _slow_kernel(monkeypatch)
    monkeypatch.setattr("sys.argv", ["braze"])
    assert main(["bisect", "--times", str(script)]) == 1
    assert "script.py:4 in f" in capsys.readouterr().err


def test_timing_draws_no_random_numbers() -> None:
    def drops(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * 2

    found = braze.bisect(drops, times=True)(torch.randn(1000)).suspect
    assert found is None or found.kind == "slow-down", found
