"""Every stage's program that `BRAZE_DEBUG` writes gives eager's values, and needs no Braze."""

from __future__ import annotations

import importlib.resources
import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import braze
from braze.diagnose.python_scalars import TextNames, scalar_text
from braze.ir.kernels.loops import SCALAR_OPS, Apply, Cast, Index, Literal, Scalar
from braze.ir.kernels.run_loops import evaluate_scalar
from braze.shapes.expr import Symbol, as_expr

_STAGES = ["01_captured.py", "02_rewritten.py", "03_loops.py", "04_schedule.py", "05_launch.py"]

_RUN = f"""
import runpy, sys
sys.path[:0] = {[p for p in sys.path if p.endswith("site-packages")]!r}
for script in sys.argv[1:]:
    sys.argv = [script, "0", "--save", script + ".results"]
    runpy.run_path(script, run_name="__main__")
assert "braze" not in sys.modules
"""


def _inference(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x @ weight), (6,))


def _training(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(torch.tanh(x @ weight), torch.arange(5) % 6)


def _random(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.3) @ weight + torch.randn(6)


def _changing(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.cat([x, x * x.shape[0]]).softmax(0), weight[:, : x.shape[0]].exp().mean(1)


def _writing(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x.add_(1)
    x[1:3].mul_(2)
    return (x @ weight).relu()


def _reducing(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x.argmax(1), x.var(0), torch.logsumexp(weight, 1), x.bfloat16().sum(1), (x > 1).any()


_PROGRAMS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "inference": (_inference, {}),
    "training": (_training, {}),
    "random numbers": (_random, {}),
    "changing sizes": (_changing, {"dynamic": True}),
    "a write to an argument": (_writing, {}),
    "a reduction": (_reducing, {}),
}


def _called(function: Callable[..., Any], name: str) -> tuple[list[torch.Tensor], torch.Tensor]:
    """What a call returns, gradients included, and the first argument behind it."""
    torch.manual_seed(3)
    x, weight = torch.randn(5, 4), torch.randn(4, 6, requires_grad=name == "training")
    made = function(x, weight)
    results = list(made) if isinstance(made, tuple) else [made]
    if weight.requires_grad:
        results[0].backward()
        assert weight.grad is not None
        results.append(weight.grad)
    return [result.detach() for result in results], x


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    same = one.shape == other.shape and one.dtype == other.dtype
    return same and torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-6)


def _written(name: str, folder: Path) -> Iterator[tuple[str, list[Path]]]:
    """The scripts of each program's graphs."""
    function, options = _PROGRAMS[name]
    given = {"debug_dir": str(folder), "debug_inputs": True}
    _called(braze.compile(function, options=given, **options), name)
    for graph in sorted(folder.iterdir()):
        assert (graph / "inputs.pt").exists()
        yield graph.name, [graph / stage for stage in _STAGES]


def _require_eager(name: str, scripts: list[Path], is_backward: bool) -> None:
    """That the scripts' results are eager's."""
    wanted, changed = _called(_PROGRAMS[name][0], name)
    if name == "training":
        wanted = wanted[1:] if is_backward else wanted[:1]
    for script in scripts:
        saved = torch.load(f"{script}.results")
        for result in wanted:
            found = [each for each in saved["results"] if isinstance(each, torch.Tensor)]
            assert any(_close(result, each) for each in found), script
        tensors = [each for each in saved["inputs"] if isinstance(each, torch.Tensor)]
        if name == "a write to an argument":
            assert any(_close(changed, each) for each in tensors), script


def test_every_stage_of_six_programs_is_eager_s(tmp_path: Path) -> None:
    every: list[tuple[str, str, list[Path]]] = []
    for number, name in enumerate(_PROGRAMS):
        every += [(name, graph, files) for graph, files in _written(name, tmp_path / str(number))]
    assert len(every) == 7  # the training has two graphs
    paths = [str(path) for _, _, files in every for path in files]
    done = subprocess.run(
        [sys.executable, "-S", "-c", _RUN, *paths], capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    assert done.stdout.count("saved inputs") == len(paths) == 35
    for name, graph, files in every:
        _require_eager(name, files, "backward" in graph)


@pytest.mark.nightly
@pytest.mark.parametrize("name", _PROGRAMS)
def test_every_file_runs_in_its_own_process(name: str, tmp_path: Path) -> None:
    for graph, files in _written(name, tmp_path):
        for file in files:
            command = [sys.executable, str(file), "1", "--save", f"{file}.results"]
            done = subprocess.run(command, capture_output=True, text=True, cwd="/")
            assert not done.returncode and "us a call" in done.stdout, done.stderr
        _require_eager(name, files, "backward" in graph)


def test_a_difference_is_shown(tmp_path: Path) -> None:
    ((_, files),) = _written("inference", tmp_path)
    text = files[3].read_text()
    assert text.count("torch.erf(") == 1
    files[3].write_text(text.replace("torch.erf(", "torch.tanh("))
    said = subprocess.run([sys.executable, str(files[3]), "0"], capture_output=True, text=True)
    shown = float(said.stdout.rsplit("largest difference from the compiled graph's ", 1)[1])
    assert 1e-3 < shown < 1


def test_generated_inputs_hold_no_data(tmp_path: Path) -> None:
    compiled = braze.compile(lambda x: x * 2 + 1, options={"debug_dir": str(tmp_path)})
    compiled(torch.full((3,), 1234.5))
    (graph,) = tmp_path.iterdir()
    assert not (graph / "inputs.pt").exists()
    assert "generated inputs" in subprocess.run(
        [sys.executable, str(graph / "03_loops.py"), "0"], capture_output=True, text=True
    ).stdout  # fmt: skip


def _operands(op: str) -> Iterator[tuple[Scalar, ...]]:
    """Operands of each kind that the operator takes, over i in [0, 4)."""
    row, i = SCALAR_OPS[op], Index(as_expr(Symbol("i")))
    kinds = {
        "float": [torch.float32, torch.float64],
        "integer": [torch.int64],
        "bool": [torch.bool],
        "number": [torch.float32, torch.int64],
        "any": [torch.float32, torch.int64],
        "bits": [torch.int64, torch.bool],
    }[row.domain]
    for dtype in kinds:
        first: Scalar = Cast(i, dtype)
        if dtype.is_floating_point:
            first = Apply("add", (Apply("mul", (first, Literal(0.3, dtype)), dtype),
                                  Literal(0.05, dtype)), dtype)  # fmt: skip
        second = Literal(True if dtype == torch.bool else 2, dtype)
        condition = Apply("lt", (i, Literal(2, torch.int64)), torch.bool)
        yield (condition, first, second) if op == "where" else (first, second, first)[: row.arity]


def test_each_scalar_operator_has_the_evaluator_s_meaning() -> None:
    names: dict[str, Any] = {}
    part = importlib.resources.files("braze.diagnose.script_parts").joinpath("grid.py")
    exec(part.read_text(), names)
    symbol, compared = Symbol("i"), 0
    names["i"] = torch.arange(4)
    for op in SCALAR_OPS:
        for operands in _operands(op):
            dtype = torch.bool if SCALAR_OPS[op].result == "bool" else operands[-1].dtype
            scalar = Apply(op, operands, dtype)
            made = eval(scalar_text(scalar, TextNames({}, {}, {symbol: 0})), names)
            expected = evaluate_scalar(scalar, symbol, 4)
            assert made.dtype == expected.dtype, op
            assert torch.equal(made.expand(4).nan_to_num(7), expected.nan_to_num(7)), op
            compared += 1
    assert compared > len(SCALAR_OPS) > 80


def test_files_of_all_kinds_of_statements(tmp_path: Path) -> None:
    def program(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        added = torch.zeros(10, 4).index_add(0, i, x)
        return added, x[i], F.pad(x, (1, 2)), torch.triu(x @ x.T), torch.roll(x, 2), x.argmin(0)

    options = {"debug_dir": str(tmp_path), "debug_inputs": True}
    compiled = braze.compile(program, options=options)
    results = compiled(torch.randn(6, 4), torch.tensor([1, 0, 3, 5, 5, 2]))
    (graph,) = tmp_path.iterdir()
    paths = [str(graph / stage) for stage in _STAGES[:4]]  # the last builds kernels
    done = subprocess.run(
        [sys.executable, "-S", "-c", _RUN, *paths], capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    for path, (made, wanted) in itertools.product(paths, enumerate(results)):
        assert torch.allclose(torch.load(f"{path}.results")["results"][made], wanted), path
