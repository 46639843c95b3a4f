"""Graphs of symbolic sizes are shrunk, too, and scripts tell every wrong value."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import braze
from braze.diagnose import graph_walk
from braze.diagnose.suspect import Suspect
from braze.ir.graphs.graph import Graph
from braze.ir.graphs.run_graph import compile_graph_runner
from braze.ir.kernels.loops import Definition, Guarded
from braze.ir.kernels.scalars import rebuild, replace_children
from braze.lower import lower
from braze.lower.rules import RULES
from braze.shapes.expr import Expr, constant_value


def _plant(patch: pytest.MonkeyPatch, name: str, change: Callable[[Any], Any]) -> None:
    """A rule made of the right one."""
    patch.setitem(RULES, name, replace(RULES[name], rule=change(RULES[name].rule)))


def _run(script: Path) -> object:
    braze.reset()
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(script), run_name="__main__")
    return end.value.code


def _halves(x: torch.Tensor, scale: int) -> torch.Tensor:
    y = torch.cat([x.sin(), x.cos()], 0).reshape(-1, x.shape[1])
    y = y[: y.shape[0] // 2] * scale
    return torch.sigmoid(y).sum(0) + y.shape[0]


@pytest.mark.parametrize("only_symbolic", (False, True))
def test_symbolic_graphs_are_shrunk(
    only_symbolic: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def crash(right: Callable[..., Any]) -> Callable[..., Any]:
        def rule(call: Any, x: Any) -> Any:
            sizes = x.type.shape
            if not only_symbolic or any(constant_value(size) is None for size in sizes):
                raise ZeroDivisionError("planted")
            return right(call, x)

        return rule

    with monkeypatch.context() as patch, torch.no_grad():
        _plant(patch, "aten.sigmoid.default", crash)
        found = braze.bisect(_halves, dynamic=True)(torch.randn(6, 5), 3)
        assert found.suspect is not None and found.suspect.stage == "lower", found
        assert found.suspect.operators == ("aten.sigmoid.default",), found
        (script,) = found.scripts
        assert ("dynamic=True" in script.read_text()) == only_symbolic
        braze.reset()
        with pytest.raises(braze.exc.InternalError, match="planted"):
            runpy.run_path(str(script), run_name="__main__")
    assert not _run(script)


def _by_half(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x.sum() * (x.shape[0] // 2)).cos()


def test_numbers_of_sizes_are_passed_to_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def find(graph: Graph, options: Any, inputs: Any, until: str = "") -> Suspect | None:
        if not any(type(node.args[1]) is Expr for node in graph.nodes if len(node.args) > 1):
            return None
        compile_graph_runner(graph)(inputs)  # raises where a number is missing
        return Suspect("wrong value", "lower", "", "planted")

    monkeypatch.setattr(sys.modules["braze.diagnose.bisect"], "find_suspect", find)
    with torch.no_grad():
        found = braze.bisect(_by_half, dynamic=True)(torch.randn(6, 5))
    assert found.suspect is not None and found.suspect.operators == ("aten.mul.Tensor",), found
    assert "dynamic=True" in found.scripts[0].read_text()
    assert not _run(found.scripts[0])


def _no_numbers(right: Callable[..., Any]) -> Callable[..., Any]:
    rule: Callable[..., Any] = RULES["aten.log.default"].rule
    return rule


def _narrow(right: Callable[..., Any]) -> Callable[..., Any]:
    return lambda call, x, other, **kwargs: right(call, x, other + 1e-6, **kwargs)


@pytest.mark.parametrize(
    ("name", "change", "function", "x"),
    (
        ("aten.sigmoid.default", _no_numbers, torch.sigmoid, -torch.ones(5)),
        ("aten.add.Tensor", _narrow, lambda x: x + 1.5, torch.ones(5, dtype=torch.float64)),
    ),
)
def test_scripts_tell_wrong_values_of_every_kind(
    name: str,
    change: Callable[..., Any],
    function: Callable[..., Any],
    x: torch.Tensor,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        _plant(patch, name, change)
        found = braze.bisect(lambda x: function(x).cos())(x)
        assert found.suspect is not None and found.suspect.kind == "wrong value", found
        (script,) = found.scripts
        assert _run(script)
    assert not _run(script)


def test_loads_that_leave_their_buffers_are_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)

    def unguarded(node: Any, below: Any) -> Any:
        found = replace_children(node, below)
        return found.value if isinstance(found, Guarded) else found

    def without_masks(*arguments: Any) -> Any:
        program = lower(*arguments)
        loops = [s for s in program.statements if isinstance(s, Definition)]
        statements = [replace(s, body=rebuild(s.body, unguarded)) for s in loops]
        return replace(program, statements=tuple(statements))

    monkeypatch.setattr(graph_walk, "lower", without_masks)
    pad = torch.nn.functional.pad
    found = braze.bisect(lambda x: pad(x, (2, 1)).sin(), scripts=False)(torch.randn(5))
    assert found.suspect is not None
    assert (found.suspect.kind, found.suspect.stage) == ("wrong value", "lower"), found
