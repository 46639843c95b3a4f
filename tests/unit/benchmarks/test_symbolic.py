"""The comparison of static and symbolic sizes."""

from __future__ import annotations

import json

import pytest
from benchmarks import symbolic


def _result(model: str, kernels: float, tracing: float) -> symbolic.Result:
    return symbolic.Result(
        model, {}, {"braze": kernels}, {"braze": (0.9, 1.2)}, {}, {"braze": tracing}
    )


def test_means_are_geometric() -> None:
    results = [_result("a", 1.0, 1.2), _result("b", 4.0, 1.2)]
    means = symbolic.summary(results, ["braze"])
    assert means == {"braze": {"kernels": pytest.approx(2.0), "tracing": pytest.approx(1.2)}}


def test_a_model_is_measured(tmp_path, capsys) -> None:
    written = tmp_path / "symbolic.json"
    arguments = [
        "--models",
        "vision_transformer",
        "--rounds",
        "1",
        "--here",
        "braze",
        "--no-tracing",
    ]
    assert symbolic.main([*arguments, "--tiny", "--json", str(written)]) == 0
    (model,) = json.loads(written.read_text())["models"]
    assert model["kernels"]["braze"] > 0 and not model["tracing"]
    assert {"eager", "braze static", "braze symbolic"} == model["call_ms"].keys()
    assert "geometric mean of 1" in capsys.readouterr().out


def test_tracing_has_both_kinds(tmp_path) -> None:
    written = tmp_path / "symbolic.json"
    arguments = ["--models", "vision_transformer", "--rounds", "0", "--here", "braze", "--tiny"]
    assert symbolic.main([*arguments, "--json", str(written)]) == 0
    (model,) = json.loads(written.read_text())["models"]
    assert model["tracing_s"].keys() == {"braze static", "braze symbolic"}
    assert not model["kernels"]


def test_a_compiler_that_takes_too_long_has_a_row(tmp_path, capsys) -> None:
    written = tmp_path / "symbolic.json"
    arguments = ["--models", "vision_transformer", "--rounds", "1", "--tiny", "--minutes", "0"]
    assert symbolic.main([*arguments, "--json", str(written)]) == 0
    (model,) = json.loads(written.read_text())["models"]
    assert model["failed"].keys() == {"braze", "torch_compile"}
    assert "torch_compile: stopped after 1 s" in capsys.readouterr().out


def test_figures_of_two_compilers_are_joined() -> None:
    mine = symbolic.Result("a", {"eager": 1.0}, {"braze": 1.1}, {"braze": (1.0, 1.2)}, {}, {})
    theirs = symbolic.Result("a", {"eager": 2.0}, {}, {}, {}, {}, {"torch_compile": "no"})
    both = mine.joined(theirs)
    assert both.call_ms == {"eager": 1.0} and both.kernels == {"braze": 1.1}
    assert "torch_compile: no" in symbolic.show(both)
